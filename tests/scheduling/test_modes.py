"""auto, single and continuous."""

from __future__ import annotations

import pytest

from homeai.request import Mode, SampledToken
from homeai.scheduling.plan import KVOpKind, StepResult
from homeai.scheduling.scheduler import Scheduler
from tests.scheduling.factories import END_TOKEN, add_all, create_requests, create_scheduler, run_step, run_to_end


def test_one_live_request_runs_in_single_mode() -> None:
    scheduler = create_scheduler()
    add_all(scheduler, create_requests(1))
    assert run_step(scheduler).plan.mode is Mode.SINGLE


def test_second_request_switches_to_continuous_within_the_step() -> None:
    scheduler = create_scheduler()
    first, second = create_requests(2)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    step = run_step(scheduler)
    assert step.plan.mode is Mode.CONTINUOUS
    assert second.request_id in step.tokens


def test_end_of_the_second_to_last_request_switches_back_within_the_step() -> None:
    scheduler = create_scheduler()
    first, second = create_requests(2)
    add_all(scheduler, [first, second])
    run_step(scheduler)
    scheduler.abort(first.request_id, 0.0)
    assert run_step(scheduler).plan.mode is Mode.SINGLE


def test_single_mode_runs_one_after_another() -> None:
    scheduler = create_scheduler(mode="single")
    add_all(scheduler, create_requests(3, max_tokens=2))
    steps = run_to_end(scheduler)
    assert all(len(step.plan.chunks) <= 1 for step in steps)
    assert [r for step in steps for r in step.plan.admitted] == ["default-0", "default-1", "default-2"]


def test_alone_a_prompt_may_use_the_whole_budget() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=512, max_chunk_tokens=256)
    add_all(scheduler, create_requests(1, num_prompt_tokens=600))
    assert run_step(scheduler).tokens == {"default-0": 512}


def test_in_company_a_prompt_keeps_to_its_chunk() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=512, max_chunk_tokens=256)
    add_all(scheduler, create_requests(2, num_prompt_tokens=600))
    assert run_step(scheduler).tokens == {"default-0": 256, "default-1": 256}


@pytest.mark.parametrize("num_requests", [1, 3])
def test_continuous_mode_stays_continuous(num_requests: int) -> None:
    scheduler = create_scheduler(mode="continuous")
    add_all(scheduler, create_requests(num_requests))
    assert {step.plan.mode for step in run_to_end(scheduler)} == {Mode.CONTINUOUS}


def test_single_mode_serves_the_heaviest_class_first() -> None:
    scheduler = create_scheduler(mode="single")
    add_all(scheduler, create_requests(2, source="nas", fairness_class="background", max_tokens=2))
    add_all(scheduler, create_requests(1, source="kitchen", fairness_class="voice", max_tokens=2))
    steps = run_to_end(scheduler)
    assert [r for step in steps for r in step.plan.admitted] == ["kitchen-0", "nas-0", "nas-1"]


# ---- the baselines ----------------------------------------------------------------------------------


def test_static_batch_runs_to_its_end_before_the_next_is_made_up() -> None:
    scheduler = create_scheduler(mode="static", max_num_seqs=2)
    short, long = create_requests(1, max_tokens=3, source="a"), create_requests(1, max_tokens=6, source="b")
    add_all(scheduler, short, long, create_requests(1, max_tokens=3, source="c"))
    steps = run_to_end(scheduler)
    steps = [step for step in steps if step.plan.chunks]
    batches = [set(step.tokens) for step in steps]
    assert batches == [{"a-0", "b-0"}] * 3 + [{"b-0"}] * 3 + [{"c-0"}] * 3
    assert [step.plan.num_idle_rows for step in steps] == [0] * 3 + [1] * 3 + [0] * 3


def test_static_batch_takes_in_nobody_who_comes_later() -> None:
    scheduler = create_scheduler(mode="static", max_num_seqs=4)
    add_all(scheduler, create_requests(1, source="a", max_tokens=4))
    run_step(scheduler)
    add_all(scheduler, create_requests(1, source="b"))
    assert set(run_step(scheduler).tokens) == {"a-0"}


def test_window_collects_before_it_runs() -> None:
    scheduler = create_scheduler(mode="window", window_s=1.0, max_num_seqs=4)
    add_all(scheduler, create_requests(1, source="a", arrival_at=5.0))
    first = run_step(scheduler, 5.0)
    assert (first.tokens, first.plan.wake_at) == ({}, 6.0)
    add_all(scheduler, create_requests(1, source="b", arrival_at=5.9))
    assert run_step(scheduler, 5.9).tokens == {}
    assert set(run_step(scheduler, 6.0).tokens) == {"a-0", "b-0"}


def test_full_window_does_not_wait() -> None:
    scheduler = create_scheduler(mode="window", window_s=1.0, max_num_seqs=2)
    add_all(scheduler, create_requests(2, arrival_at=5.0))
    assert len(run_step(scheduler, 5.0).tokens) == 2


# ---- guessing ahead ---------------------------------------------------------------------------------


def test_decodes_may_guess_ahead_unless_a_prompt_is_read_beside_them() -> None:
    scheduler = create_scheduler(max_drafts=6)
    add_all(scheduler, create_requests(1, source="a"))
    run_step(scheduler)
    assert [c.num_drafts for c in run_step(scheduler).plan.chunks] == [6]
    add_all(scheduler, create_requests(1, source="b"))
    assert {c.num_drafts for c in run_step(scheduler).plan.chunks} == {0}
    assert [c.num_drafts for c in run_step(scheduler).plan.chunks] == [6, 6]


def test_nobody_guesses_while_somebody_waits() -> None:
    scheduler = create_scheduler(max_drafts=6, max_num_seqs=2)
    add_all(scheduler, create_requests(3, source="a"))
    run_step(scheduler)
    assert {c.num_drafts for c in run_step(scheduler).plan.chunks} == {0}


def test_guesses_leave_every_decode_its_cell() -> None:
    """However few cells are left: nobody is parked for a guess."""
    for num_left in range(2, 20):
        scheduler = create_scheduler(max_drafts=6, num_kv_cells=256)
        add_all(scheduler, create_requests(2, source="a", num_prompt_tokens=50))
        run_step(scheduler)
        scheduler.cache.reserve(scheduler.cache.num_available - num_left)
        chunks = scheduler.schedule(0.0).chunks
        assert [c.num_tokens for c in chunks] == [1, 1]
        assert sum(c.num_drafts for c in chunks) == min(12, num_left - 2)


def test_nothing_is_guessed_beyond_the_end() -> None:
    scheduler = create_scheduler(max_drafts=6)
    add_all(scheduler, create_requests(1, max_tokens=4))
    run_step(scheduler)
    assert [c.num_drafts for c in run_step(scheduler).plan.chunks] == [2], "one drawn, one to draw, two to guess"


def test_accepted_guesses_are_computed_tokens() -> None:
    scheduler = create_scheduler(max_drafts=3)
    (request,) = create_requests(1, max_tokens=20)
    scheduler.add(request)
    run_step(scheduler)
    step = run_drafts(scheduler, [7, 7, 8])
    assert step == [(1, 7), (2, 7), (3, 8)]
    assert (request.num_output_tokens, request.num_computed_tokens) == (4, 13), "two of them were guesses"
    assert scheduler.cache.num_used == 13


def test_guesses_behind_an_end_are_cut_off() -> None:
    scheduler = create_scheduler(max_drafts=3, max_kept_cells=None)
    (request,) = create_requests(1, max_tokens=20, num_prompt_tokens=60)
    scheduler.add(request)
    run_step(scheduler)
    assert run_drafts(scheduler, [7, END_TOKEN, 9]) == [(1, 7), (2, END_TOKEN)]
    assert request.is_finished
    assert scheduler.cache.num_kept == 62
    assert [(op.kind, op.length) for op in scheduler.cache.pending_ops] == [(KVOpKind.TRUNCATE, 62)]


def run_drafts(scheduler: Scheduler, token_ids: list[int]) -> list[tuple[int, int]]:
    """A step in which the runner accepts all but the last; what came of it, as (index, token)."""
    plan = scheduler.schedule(0.0)
    sampled = [tuple(SampledToken(token_id) for token_id in token_ids)]
    result = StepResult([1], sampled, forward_s=0.0, num_draft_tokens=len(token_ids) - 1)
    return [(o.output_index, o.token.token_id) for o in scheduler.update(plan, result, 0.0) if o.token is not None]
