"""auto, single and continuous."""

from __future__ import annotations

import pytest

from homeai.request import Mode
from tests.scheduling.factories import add_all, create_requests, create_scheduler, run_step, run_to_end


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
    scheduler.abort(first.request_id)
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
