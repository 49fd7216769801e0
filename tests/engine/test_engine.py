"""Engine = scheduler + runner + clock."""

from __future__ import annotations

import pytest

from homeai.backends.simulated.runner import CostModel, LinearCost, SimulatedRunner
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine
from homeai.engine.runner import RunnerLimits
from homeai.request import FinishReason, Request
from tests.engine.factories import limits_of
from tests.scheduling.factories import create_requests, create_scheduler


class RecordingRunner(SimulatedRunner):
    """Remembers whose buffers it holds."""

    def __init__(self, limits: RunnerLimits, clock: VirtualClock, cost: CostModel | None = None) -> None:
        super().__init__(limits, clock, cost)
        self.held: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        super().add(request)
        self.held[request.request_id] = request

    def remove(self, request_id: str) -> None:
        super().remove(request_id)
        del self.held[request_id]


def create_engine(cost: CostModel | None = None, **config: object) -> tuple[Engine, RecordingRunner, VirtualClock]:
    scheduler = create_scheduler(**config)
    limits = limits_of(scheduler.config)
    clock = VirtualClock()
    runner = RecordingRunner(limits, clock, cost)
    return Engine(scheduler, runner, clock), runner, clock


def test_step_takes_what_its_batch_costs() -> None:
    engine, _, clock = create_engine(LinearCost(step_s=1.0, decode_token_s=0.5, prefill_token_s=0.25))
    engine.add(create_requests(1, num_prompt_tokens=8)[0])
    assert engine.step().step_s == 1.0 + 8 * 0.25
    assert engine.step().step_s == 1.0 + 0.5
    assert clock.now() == 4.5


def test_host_time_is_the_step_without_the_model() -> None:
    engine, _, _ = create_engine()
    engine.add(create_requests(1)[0])
    step = engine.step()
    assert step.step_s > 0
    assert step.host_s == pytest.approx(0.0)


def test_runner_forgets_a_request_at_its_end() -> None:
    engine, runner, _ = create_engine()
    engine.add(create_requests(1, max_tokens=2)[0])
    engine.step()
    assert runner.held
    engine.step()
    assert not runner.held


def test_runner_forgets_an_aborted_request() -> None:
    engine, runner, _ = create_engine()
    engine.add(create_requests(1)[0])
    assert engine.abort("default-0", FinishReason.STOP) is not None
    assert not runner.held


def test_repeated_abort_reaches_nobody() -> None:
    engine, _, _ = create_engine()
    engine.add(create_requests(1)[0])
    engine.abort("default-0")
    assert engine.abort("default-0") is None
    assert engine.abort("never-heard-of") is None


def test_runner_takes_nothing_of_a_refused_request() -> None:
    engine, runner, _ = create_engine(max_model_len=100)
    with pytest.raises(AssertionError, match="lengths"):
        engine.add(create_requests(1, num_prompt_tokens=101)[0])
    assert not runner.held
    assert not engine.has_work


def test_refused_namesake_leaves_the_live_request_alone() -> None:
    engine, runner, _ = create_engine()
    live, namesake = create_requests(1)[0], create_requests(1)[0]
    engine.add(live)
    with pytest.raises(AssertionError, match="live already"):
        engine.add(namesake)
    assert runner.held[live.request_id] is live


def test_timed_out_request_ends_in_the_steps_outputs_and_does_not_run() -> None:
    engine, runner, clock = create_engine(queue_timeouts_s={"interactive": 5.0})
    engine.add(create_requests(1)[0])
    clock.advance(5.0)
    step = engine.step()
    assert [(o.request_id, o.finish_reason) for o in step.outputs] == [("default-0", FinishReason.TIMEOUT)]
    assert step.plan.chunks == []
    assert not runner.held


def test_preemptions_are_counted_by_step() -> None:
    engine, _, _ = create_engine(num_kv_cells=64)
    for request in create_requests(2, num_prompt_tokens=10, max_tokens=50):
        engine.add(request)
    counts = []
    while engine.has_work:
        counts.append(engine.step().num_preemptions)
    assert sum(counts) == engine.scheduler.num_preemptions == 1
