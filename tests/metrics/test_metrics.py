from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from homeai.ledger import LedgerRow
from homeai.messages import StepStats
from homeai.metrics import Metrics
from homeai.metrics.sources import MAX_SOURCES


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Of one sample of what /metrics shows; None where there is no such sample."""
    families = text_string_to_metric_families(metrics.render().decode())
    samples = (sample for family in families for sample in family.samples)
    return next((s.value for s in samples if s.name == f"homeai_{name}" and s.labels == labels), None)


def step(**changes) -> StepStats:
    defaults = {
        "step": 1,
        "mode": "continuous",
        "num_running": 3,
        "num_waiting": 2,
        "num_decode_tokens": 3,
        "num_prefill_tokens": 128,
        "kv_used": 700,
        "step_s": 0.05,
        "host_s": 0.001,
        "num_preemptions": 0,
        "out_of_room": False,
    }
    return StepStats(**defaults | changes)


def row(**changes) -> LedgerRow:
    defaults = {
        "request_id": "r",
        "arrival": 0.0,
        "api": "/v1/completions",
        "source": "s",
        "fairness_class": "voice",
        "model": "m",
        "num_prompt_tokens": 100,
        "num_cached_tokens": 64,
        "num_output_tokens": 11,
        "queue_s": 0.2,
        "ttft_s": 0.5,
        "e2e_s": 1.5,
        "num_preemptions": 1,
        "status": 200,
        "finish_reason": "stop",
    }
    return LedgerRow(**defaults | changes)


def test_step_shows_the_batch_as_it_ran(metrics):
    metrics.observe_step(step())
    assert value(metrics, "engine_step_seconds_sum") == 0.05
    assert value(metrics, "engine_host_seconds_sum") == 0.001
    assert value(metrics, "computed_tokens_total", phase="decode") == 3
    assert value(metrics, "computed_tokens_total", phase="prefill") == 128
    assert value(metrics, "iteration_tokens_sum") == 131


def test_steps_are_counted_by_mode(metrics):
    for mode in ("single", "continuous", "continuous"):
        metrics.observe_step(step(mode=mode))
    assert value(metrics, "engine_steps_total", mode="single") == 1
    assert value(metrics, "engine_steps_total", mode="continuous") == 2


def test_report_without_a_computed_token_is_no_step(metrics):
    metrics.observe_step(step(num_decode_tokens=0, num_prefill_tokens=0, num_running=0, step_s=0.0))
    assert value(metrics, "engine_steps_total", mode="continuous") == 0
    assert value(metrics, "iteration_tokens_count") == 0
    assert value(metrics, "engine_step_seconds_count") == 0


def test_preemptions_and_full_caches_are_summed_over_steps(metrics):
    for num_preemptions, out_of_room in ((2, True), (0, False), (1, True)):
        metrics.observe_step(step(num_preemptions=num_preemptions, out_of_room=out_of_room))
    assert value(metrics, "num_preemptions_total") == 3
    assert value(metrics, "out_of_room_total") == 2


def test_token_gaps_go_to_their_class(metrics):
    metrics.observe_token_gap("voice", 0.04)
    metrics.observe_token_gap("voice", 0.02)
    metrics.observe_token_gap("coding", 3.0)
    assert value(metrics, "inter_token_latency_seconds_count", **{"class": "voice"}) == 2
    assert value(metrics, "inter_token_latency_seconds_bucket", **{"class": "voice", "le": "0.02"}) == 1
    assert value(metrics, "inter_token_latency_seconds_sum", **{"class": "coding"}) == 3


def test_finished_request_is_counted_and_timed_by_class(metrics):
    metrics.observe_finished(row())
    voice = {"class": "voice"}
    assert value(metrics, "request_success_total", finished_reason="stop", **voice) == 1
    assert value(metrics, "prompt_tokens_total", **voice) == 100
    assert value(metrics, "prefix_cache_queries_total", **voice) == 100
    assert value(metrics, "prefix_cache_hits_total", **voice) == 64
    assert value(metrics, "generation_tokens_total", **voice) == 11
    assert value(metrics, "request_queue_time_seconds_sum", **voice) == 0.2
    assert value(metrics, "time_to_first_token_seconds_sum", **voice) == 0.5
    assert value(metrics, "request_prefill_time_seconds_sum", **voice) == pytest.approx(0.3)
    assert value(metrics, "request_decode_time_seconds_sum", **voice) == 1.0
    assert value(metrics, "request_inference_time_seconds_sum", **voice) == pytest.approx(1.3)
    assert value(metrics, "e2e_request_latency_seconds_sum", **voice) == 1.5
    assert value(metrics, "request_prompt_tokens_sum", **voice) == 100
    assert value(metrics, "request_generation_tokens_sum", **voice) == 11
    assert value(metrics, "request_time_per_output_token_seconds_sum", **voice) == pytest.approx(0.1)
    assert value(metrics, "request_preemptions_sum", **voice) == 1


def test_request_that_never_ran_has_no_first_token(metrics):
    metrics.observe_finished(row(queue_s=None, ttft_s=None, num_output_tokens=0, finish_reason="timeout"))
    assert value(metrics, "request_success_total", finished_reason="timeout", **{"class": "voice"}) == 1
    assert not value(metrics, "time_to_first_token_seconds_count", **{"class": "voice"})
    assert not value(metrics, "request_time_per_output_token_seconds_count", **{"class": "voice"})
    assert not value(metrics, "prefix_cache_queries_total", **{"class": "voice"})


def test_single_token_has_no_time_per_token(metrics):
    metrics.observe_finished(row(num_output_tokens=1))
    assert not value(metrics, "request_time_per_output_token_seconds_count", **{"class": "voice"})


def test_rejections_are_counted_by_reason(metrics):
    metrics.observe_rejected("background", "queue_full")
    assert value(metrics, "requests_rejected_total", reason="queue_full", **{"class": "background"}) == 1


def test_series_of_a_class_are_there_before_its_first_request():
    metrics = Metrics(["voice"])
    voice = {"class": "voice"}
    assert value(metrics, "time_to_first_token_seconds_count", **voice) == 0
    assert value(metrics, "request_success_total", finished_reason="timeout", **voice) == 0
    assert value(metrics, "prompt_tokens_total", **voice) == 0


def test_two_daemons_in_one_process_do_not_share_series(metrics):
    metrics.observe_rejected("voice", "queue_full")
    assert value(Metrics(), "requests_rejected_total", reason="queue_full", **{"class": "voice"}) is None


def test_parking_is_counted_by_class_and_apart_from_token_gaps(metrics):
    metrics.observe_finished(row(num_preemptions=2, parked_s=3.0, num_recomputed_tokens=40, num_moved_bytes=5000))
    metrics.observe_finished(row(num_preemptions=0, parked_s=0.0))
    assert value(metrics, "request_parked_seconds_count", **{"class": "voice"}) == 1
    assert value(metrics, "request_parked_seconds_sum", **{"class": "voice"}) == 3.0
    assert value(metrics, "recomputed_tokens_total", **{"class": "voice"}) == 40
    assert value(metrics, "parked_kv_bytes_total", **{"class": "voice"}) == 5000


def test_predicted_steps_are_held_against_real_ones(metrics):
    metrics.observe_step(step(step_s=0.06, predicted_s=0.05))
    assert value(metrics, "engine_step_actual_to_predicted_ratio_sum") == pytest.approx(1.2)


def test_idle_rows_evictions_and_guesses_are_counted(metrics):
    metrics.observe_step(step(num_idle_rows=3, num_evictions=2, num_draft_tokens=6, num_accepted_tokens=4))
    assert value(metrics, "idle_row_steps_total") == 3
    assert value(metrics, "prefix_cache_evictions_total") == 2
    assert value(metrics, "spec_decode_num_drafts_total") == 1
    assert value(metrics, "spec_decode_num_draft_tokens_total") == 6
    assert value(metrics, "spec_decode_num_accepted_tokens_total") == 4


def test_service_of_a_source_is_what_fairness_weighs():
    metrics = Metrics(token_weights=(0.5, 3.0))
    metrics.observe_finished(row(source="kitchen", num_prompt_tokens=100, num_cached_tokens=60, num_output_tokens=10))
    kitchen = {"source": "kitchen", "class": "voice"}
    assert value(metrics, "source_requests_total", **kitchen) == 1
    assert value(metrics, "source_service_tokens_total", **kitchen) == 0.5 * 40 + 3.0 * 10
    assert value(metrics, "source_queue_seconds_total", **kitchen) == 0.2


def test_request_without_a_first_token_was_no_service(metrics):
    metrics.observe_finished(row(ttft_s=None, num_output_tokens=0, finish_reason="abort"))
    assert value(metrics, "source_service_tokens_total", source="s", **{"class": "voice"}) == 0


def test_names_that_clients_make_up_share_a_series_when_there_are_too_many():
    metrics = Metrics(sources=["kitchen"])
    for number in range(MAX_SOURCES + 10):
        metrics.observe_finished(row(source=f"made-up-{number}"))
    metrics.observe_finished(row(source="kitchen"))
    families = text_string_to_metric_families(metrics.render().decode())
    counts = {
        s.labels["source"]: s.value for f in families for s in f.samples if s.name.endswith("source_requests_total")
    }
    assert len(counts) == MAX_SOURCES + 1
    assert (counts["other"], counts["kitchen"], counts["made-up-0"]) == (11, 1, 1)
