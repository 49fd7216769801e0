from __future__ import annotations

import msgspec
import pytest

from homeai.engine.engine import Engine, Step
from homeai.evaluation import traces
from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.records import Run
from homeai.evaluation.simulator import run
from homeai.request import FinishReason, Mode
from tests.evaluation.factories import COST, TARGETS, create_arrivals, create_config
from tests.test_imports import loaded_by


def test_one_request_takes_what_its_steps_cost() -> None:
    (request,) = run(create_arrivals(1, at=2.0, num_prompt_tokens=10, max_tokens=3), create_config(), COST).requests
    prefill_s = COST.step_s(StepShape(10, 0, 10, 55, 10))
    assert request.first_token_at == pytest.approx(2.0 + prefill_s)
    gaps = [COST.step_s(StepShape(0, 1, cells, cells, cells)) for cells in (11, 12)]
    assert request.finished_at == pytest.approx(2.0 + prefill_s + sum(gaps))
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_prompt_tokens == 10


def test_idle_time_is_skipped() -> None:
    arrivals = create_arrivals(1) + create_arrivals(1, at=1e6, source="b")
    outcome = run(arrivals, create_config(), COST)
    assert outcome.wall_s == pytest.approx(1e6, abs=1)
    assert outcome.requests[1].admitted_at == 1e6


def test_who_arrives_during_a_step_is_in_the_next_one() -> None:
    arrivals = create_arrivals(1, num_prompt_tokens=200) + create_arrivals(1, at=0.01, source="b")
    first, second = run(arrivals, create_config(), COST).requests
    assert second.arrival_at == 0.01
    assert second.admitted_at == pytest.approx(first.first_token_at)


def test_front_end_reads_a_request_first_and_a_step_meanwhile_takes_longer() -> None:
    cost = msgspec.structs.replace(COST, arrival_s=0.02)
    arrivals = create_arrivals(1, num_prompt_tokens=200, max_tokens=1) + create_arrivals(1, at=0.05, source="b")
    first, second = run(arrivals, create_config(), cost).requests
    prefill_s = COST.step_s(StepShape(200, 0, 200, 20_100, 200))
    assert first.admitted_at == pytest.approx(0.02)
    assert first.first_token_at == pytest.approx(0.02 + prefill_s + 0.02)
    assert (second.arrival_at, second.admitted_at) == (0.05, pytest.approx(first.first_token_at))


def test_client_that_leaves_ends_its_request_after_the_step_under_way() -> None:
    (request,) = run(create_arrivals(1, max_tokens=100, cancel_after_s=0.5), create_config(), COST).requests
    assert request.finish_reason is FinishReason.ABORT
    assert request.finished_at is not None
    assert 0.5 <= request.finished_at < 0.53
    assert request.token_times[-1] == request.finished_at


def test_client_that_looks_only_at_tokens_leaves_with_one() -> None:
    arrivals = create_arrivals(1, num_prompt_tokens=1000, cancel_after_s=0.1, cancels_on_token=True)
    (request,) = run(arrivals, create_config(), COST).requests
    assert len(request.token_times) == 1
    assert request.finish_reason is FinishReason.ABORT
    assert request.finished_at == request.first_token_at


def test_client_that_left_while_it_waited_gets_nothing() -> None:
    arrivals = create_arrivals(2, max_tokens=100) + create_arrivals(1, source="b", cancel_after_s=0.2)
    *_, request = run(arrivals, create_config(mode="single"), COST).requests
    assert (request.finish_reason, request.token_times, request.admitted_at) == (FinishReason.ABORT, [], None)


def test_prompt_longer_than_the_model_is_refused_and_the_others_are_served() -> None:
    arrivals = create_arrivals(1, num_prompt_tokens=300) + create_arrivals(1, source="b")
    refused, served = run(arrivals, create_config(max_model_len=256), COST).requests
    assert (refused.finish_reason, refused.token_times) == (None, [])
    assert served.finish_reason is FinishReason.LENGTH


def test_same_workload_gives_the_same_run() -> None:
    first, second = (run(traces.bursts(3, 30.0), create_config(), COST) for _ in range(2))
    assert first == second


def test_shared_beginnings_are_computed_once() -> None:
    arrivals = traces.shared(11, 4)
    with_cache = run(arrivals, create_config(num_cells=8192), COST)
    without = run(arrivals, create_config(num_cells=8192, can_share=False), COST)
    cached = sorted(r.num_cached_tokens for r in with_cache.requests)
    assert cached[0] == 0
    assert all(0.9 * 801 < count <= 801 for count in cached[1:])
    assert prefilled(with_cache) == prefilled(without) - sum(cached)


def prefilled(outcome: Run) -> int:
    return sum(step.num_prefill_tokens for step in outcome.steps)


def test_service_is_what_was_computed_or_drawn_once() -> None:
    arrivals = create_arrivals(3, source="a") + create_arrivals(2, source="b")
    outcome = run(arrivals, create_config(), COST)
    service = {"a": 0.0, "b": 0.0}
    for step in outcome.steps:
        for (_, source), weighted_tokens in step.service.items():
            service[source] += weighted_tokens
    assert service == {"a": 3 * (10 + 2 * 5), "b": 2 * (10 + 2 * 5)}


def test_backlogged_is_who_has_a_request_outside_of_the_step() -> None:
    arrivals = create_arrivals(3, source="a") + create_arrivals(1, source="b", at=0.001)
    outcome = run(arrivals, create_config(mode="single"), COST)
    assert {owner[1] for owner in outcome.steps[0].backlogged} == {"a"}
    assert outcome.steps[-1].backlogged == frozenset()
    assert {step.mode for step in outcome.steps} == {Mode.SINGLE}


def test_watcher_sees_every_step() -> None:
    seen: list[int] = []

    def watch(engine: Engine, step: Step) -> None:
        seen.append(len(step.plan.chunks))
        assert engine.scheduler.config.mode == "continuous"

    outcome = run(create_arrivals(3), create_config(), COST, watch=watch)
    assert [count for count in seen if count] == [step.num_rows for step in outcome.steps]


def test_simulating_loads_no_model_no_web_and_no_numpy() -> None:
    loaded = loaded_by(
        "homeai.evaluation.simulator",
        "homeai.evaluation.traces",
        "homeai.evaluation.summary",
        "homeai.evaluation.plan.estimate",
    )
    assert not loaded & {"torch", "llama_cpp", "fastapi", "sqlite_utils", "numpy", "pydantic", "homeai.server"}


def test_parked_request_waits_again() -> None:
    slow = [a for s in "ab" for a in create_arrivals(1, source=s, fairness_class="background", max_tokens=400)]
    hurried = create_arrivals(1, at=4.0, source="kitchen", fairness_class="voice", num_prompt_tokens=300)
    outcome = run(slow + hurried, create_config(max_num_seqs=2, classes=TARGETS), COST)
    (parked,) = [record for record in outcome.requests if record.num_preemptions]
    assert parked.fairness_class == "background"
    assert parked.parked_s > 0
    owner = (parked.fairness_class, parked.source)
    waited = [step for step in outcome.steps if owner in step.backlogged]
    assert waited
    assert all(step.num_waiting == 1 and owner not in step.service for step in waited)
    assert len(parked.token_times) == 400
