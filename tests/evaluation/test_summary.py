from __future__ import annotations

import pytest

from homeai.evaluation.records import Owner, RequestRecord, Run, StepRecord
from homeai.evaluation.summary import percentile, summarise
from homeai.request import FinishReason, Mode

WEIGHTS = {"voice": 8.0, "coding": 2.0}


def record(*token_times: float, **changes: object) -> RequestRecord:
    fields: dict[str, object] = {
        "request_id": "r",
        "source": "s",
        "fairness_class": "voice",
        "arrival_at": 0.0,
        "num_prompt_tokens": 10,
        "admitted_at": 0.25,
        "token_times": list(token_times),
        "finished_at": token_times[-1] if token_times else 1.0,
        "finish_reason": FinishReason.LENGTH,
    }
    return RequestRecord(**fields | changes)  # type: ignore[arg-type]


def step(service: dict[Owner, float], backlogged: set[Owner] | None = None, **changes: object) -> StepRecord:
    fields: dict[str, object] = {
        "started_at": 0.0,
        "step_s": 0.1,
        "mode": Mode.CONTINUOUS,
        "num_rows": len(service),
        "num_idle_rows": 0,
        "num_decode_tokens": 0,
        "num_prefill_tokens": 0,
        "num_waiting": 0,
        "num_preemptions": 0,
        "kv_used": 0,
        "service": service,
        "backlogged": frozenset(service if backlogged is None else backlogged),
    }
    return StepRecord(**fields | changes)  # type: ignore[arg-type]


def test_percentile_is_the_value_of_nearest_rank() -> None:
    values = [float(n) for n in range(101)]
    assert percentile(values, 50) == 50.0
    assert percentile(reversed(values), 95) == 95.0
    assert percentile([3.0], 95) == 3.0
    assert percentile([], 50) is None


def test_latencies_count_from_arrival() -> None:
    summary = summarise(Run([record(1.0, 1.5, 3.0, arrival_at=0.5)], [], 3.0), WEIGHTS)
    voice = summary.classes["voice"]
    assert (voice.ttft_p50, voice.e2e_p95, voice.queue_p95) == (0.5, 2.5, -0.25)
    assert (voice.tpot_p50, voice.itl_p95, voice.itl_max) == (1.0, 1.5, 1.5)
    assert summary.tokens_per_s == 1.0


def test_cancelled_request_counts_for_its_tokens_and_not_for_its_end() -> None:
    voice = summarise(Run([record(1.0, 2.0, finish_reason=FinishReason.ABORT)], [], 2.0), WEIGHTS).classes["voice"]
    assert (voice.num_completed, voice.num_cancelled, voice.num_output_tokens) == (0, 1, 2)
    assert (voice.ttft_p50, voice.e2e_p95) == (1.0, None)


def test_ends_are_told_apart() -> None:
    runs = [
        record(finish_reason=FinishReason.TIMEOUT, admitted_at=None),
        record(finish_reason=None, admitted_at=None, finished_at=None),
        record(1.0),
    ]
    voice = summarise(Run(runs, [], 1.0), WEIGHTS).classes["voice"]
    assert (voice.num_requests, voice.num_timed_out, voice.num_refused, voice.num_completed) == (3, 1, 1, 1)


def test_nothing_happened_is_a_summary_too() -> None:
    summary = summarise(Run([], [], 0.0), WEIGHTS)
    assert (summary.num_output_tokens, summary.jain, summary.classes) == (0, None, {})


def test_waste_is_what_steps_left_idle() -> None:
    steps = [step({}, num_idle_rows=7), step({}, num_idle_rows=2)]
    assert summarise(Run([], steps, 1.0), WEIGHTS).wasted_row_steps == 9


A, B, VOICE = ("coding", "a"), ("coding", "b"), ("voice", "v")


def test_service_by_weight_is_perfectly_fair() -> None:
    summary = summarise(Run([record(1.0)], [step({VOICE: 80.0, A: 10.0, B: 10.0})], 1.0), WEIGHTS)
    assert summary.jain == pytest.approx(1.0)
    assert summary.classes["voice"].share == summary.classes["voice"].weight_share == pytest.approx(0.8)


def test_one_source_that_gets_all_of_two_halves_the_index() -> None:
    summary = summarise(Run([], [step({A: 10.0, B: 0.0})], 1.0), WEIGHTS)
    assert summary.jain == pytest.approx(0.5)


def test_sources_that_do_not_wait_do_not_count() -> None:
    steps = [step({A: 10.0, B: 10.0, VOICE: 500.0}, {A, B}), step({A: 900.0}, {A})]
    summary = summarise(Run([record(1.0)], steps, 1.0), WEIGHTS)
    assert summary.jain == pytest.approx(1.0)
    assert summary.classes["voice"].share is None


def test_who_waited_for_a_moment_hardly_moves_the_index() -> None:
    steps = [step({A: 10.0, B: 10.0})] * 99 + [step({A: 10.0, VOICE: 0.0})]
    jain = summarise(Run([], steps, 1.0), WEIGHTS).jain
    assert jain is not None
    assert jain > 0.95
