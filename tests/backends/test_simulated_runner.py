"""The runner without a model: its clock, its books, its complaints."""

from __future__ import annotations

import pytest

from homeai.backends.simulated.runner import LinearCost, SimulatedRunner, output_token
from homeai.clock import VirtualClock
from homeai.scheduling.plan import Chunk, KVOp, KVOpKind, StepPlan
from tests.engine.factories import limits_of
from tests.scheduling.factories import create_requests, create_scheduler

COST = LinearCost(step_s=1.0, decode_token_s=0.1, prefill_token_s=0.01)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def runner(clock: VirtualClock) -> SimulatedRunner:
    runner = SimulatedRunner(limits_of(create_scheduler(num_kv_cells=100).config), clock, COST)
    for request in create_requests(3, num_prompt_tokens=90):
        runner.add(request)
    return runner


def prefill(number: int, start: int, count: int, num_outputs: int = 0) -> StepPlan:
    """A step that computes tokens of default-`number` in the sequence of that number."""
    return StepPlan(chunks=[Chunk(f"default-{number}", number, start, count, num_outputs)], num_prefill_tokens=count)


def test_step_takes_what_the_cost_model_says(runner: SimulatedRunner, clock: VirtualClock) -> None:
    plan = prefill(0, 0, 10)
    plan.num_decode_tokens = 3
    assert runner.execute(plan).forward_s == pytest.approx(1.0 + 3 * 0.1 + 10 * 0.01)
    assert clock.now() == pytest.approx(1.4)


def test_token_is_drawn_where_one_is_asked_for(runner: SimulatedRunner) -> None:
    plan = prefill(0, 0, 10)
    plan.chunks += prefill(1, 0, 5, num_outputs=1).chunks
    result = runner.execute(plan)
    assert result.num_computed == [10, 5]
    assert [[token.token_id for token in tokens] for tokens in result.sampled] == [[], [output_token(0)]]


def test_cells_are_held_until_they_are_dropped(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 10))
    runner.execute(prefill(0, 10, 5))
    assert (runner.length(0), runner.num_cells_used) == (15, 15)
    runner.execute(StepPlan(kv_ops=[KVOp(KVOpKind.DROP, 0)]))
    assert (runner.length(0), runner.num_cells_used) == (0, 0)


def test_step_that_only_drops_takes_no_time(runner: SimulatedRunner, clock: VirtualClock) -> None:
    runner.execute(StepPlan(kv_ops=[KVOp(KVOpKind.DROP, 0)]))
    assert clock.now() == 0.0


def test_without_room_nothing_is_computed_but_drops_stay(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 60))
    runner.execute(prefill(1, 0, 30))
    plan = prefill(2, 0, 80)
    plan.kv_ops = [KVOp(KVOpKind.DROP, 1)]
    result = runner.execute(plan)
    assert (result.out_of_room, result.num_computed, result.sampled) == (True, [0], [()])
    assert [runner.length(seq_id) for seq_id in range(3)] == [60, 0, 0]


def test_drops_come_before_the_tokens(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 90))
    plan = StepPlan(kv_ops=[KVOp(KVOpKind.DROP, 0)], chunks=[Chunk("default-1", 0, 0, 50, 1)], num_prefill_tokens=50)
    assert not runner.execute(plan).out_of_room
    assert runner.length(0) == 50


def test_plan_that_leaves_a_hole_is_a_bug(runner: SimulatedRunner) -> None:
    with pytest.raises(AssertionError, match="holds 0 tokens, not 7"):
        runner.execute(prefill(0, 7, 1))


def test_plan_for_a_request_that_is_gone_is_a_bug(runner: SimulatedRunner) -> None:
    runner.remove("default-0")
    with pytest.raises(AssertionError, match="default-0 is not live"):
        runner.execute(prefill(0, 0, 1))


def test_shared_tokens_take_no_new_cells(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 10))
    plan = StepPlan(kv_ops=[KVOp(KVOpKind.SHARE, 1, other=0, length=8)])
    runner.execute(plan)
    assert (runner.length(1), runner.num_cells_used) == (8, 10)
    runner.execute(StepPlan(kv_ops=[KVOp(KVOpKind.DROP, 0)]))
    assert (runner.length(1), runner.num_cells_used) == (8, 8)


def test_what_was_shared_must_be_what_the_request_begins_with(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 10))
    plan = prefill(1, 8, 1)
    plan.kv_ops = [KVOp(KVOpKind.SHARE, 1, other=0, length=8)]
    with pytest.raises(AssertionError, match="another one's tokens"):
        runner.execute(plan)


def test_saved_sequence_comes_back(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 10))
    runner.execute(StepPlan(kv_ops=[KVOp(KVOpKind.SAVE, 0, other=1, length=10), KVOp(KVOpKind.DROP, 0)]))
    assert (runner.num_cells_used, runner.num_saved) == (0, 1)
    runner.execute(StepPlan(kv_ops=[KVOp(KVOpKind.RESTORE, 2, other=1, length=10), KVOp(KVOpKind.FORGET, -1, other=1)]))
    assert (runner.length(2), runner.num_saved) == (10, 0)
    plan = StepPlan(chunks=[Chunk("default-0", 2, 10, 0, 0)])
    runner.execute(plan)


def test_cut_sequence_keeps_its_head(runner: SimulatedRunner) -> None:
    runner.execute(prefill(0, 0, 10))
    runner.execute(StepPlan(kv_ops=[KVOp(KVOpKind.TRUNCATE, 0, length=4)]))
    assert (runner.length(0), runner.num_cells_used) == (4, 4)
