"""When the KV cache is full: who waits, and that everyone comes back to where they were."""

from __future__ import annotations

import pytest

from homeai.request import RequestStatus
from homeai.scheduling.preemption import choose_victim
from tests.scheduling.factories import (
    WEIGHTS,
    add_all,
    chunk_of,
    create_requests,
    create_scheduler,
    run_step,
    run_to_end,
    run_until,
)


def test_victim_is_of_the_lowest_class() -> None:
    (voice,) = create_requests(1, source="v", fairness_class="voice")
    (document,) = create_requests(1, source="d", fairness_class="background")
    document.num_computed_tokens = 1000
    assert choose_victim([voice, document], WEIGHTS.__getitem__) is document


def test_victim_is_the_cheapest_to_bring_back() -> None:
    cheap, dear = create_requests(2)
    cheap.num_computed_tokens, dear.num_computed_tokens = 10, 20
    assert choose_victim([dear, cheap], WEIGHTS.__getitem__) is cheap


def test_of_equal_victims_the_latest_waits() -> None:
    first, second = create_requests(2)
    assert choose_victim([second, first], WEIGHTS.__getitem__) is second


def test_of_victims_that_came_together_the_last_admitted_waits() -> None:
    first, second = create_requests(2)
    second.arrival_at = first.arrival_at
    assert choose_victim([first, second], WEIGHTS.__getitem__) is second


def test_full_cache_parks_one_and_the_other_goes_on() -> None:
    scheduler = create_scheduler(num_kv_cells=64)
    first, second = create_requests(2, num_prompt_tokens=10, max_tokens=50)
    add_all(scheduler, [first, second])
    steps = run_until(scheduler, lambda: scheduler.num_preemptions > 0)
    assert (first.status, second.status) == (RequestStatus.RUNNING, RequestStatus.PREEMPTED)
    assert steps[-1].tokens == {first.request_id: 1}, "no step is lost"


def test_parked_request_comes_back_at_the_same_text_position() -> None:
    scheduler = create_scheduler(num_kv_cells=64)
    first, second = create_requests(2, num_prompt_tokens=10, max_tokens=50)
    add_all(scheduler, [first, second])
    steps = run_until(scheduler, lambda: scheduler.num_preemptions > 0)
    num_before, num_tokens = second.num_output_tokens, second.num_tokens
    back = run_until(scheduler, lambda: second.status is RequestStatus.RUNNING)
    assert chunk_of(back[-1], second)[2:5] == (0, num_tokens, 1), "prompt and text so far, computed again"
    assert (second.request_id, num_before) in back[-1].drawn
    steps += back + run_to_end(scheduler)
    for request in (first, second):
        assert [i for s in steps for name, i in s.drawn if name == request.request_id] == list(range(50))


def test_parked_request_is_first_of_its_source() -> None:
    scheduler = create_scheduler(num_kv_cells=64)
    requests = create_requests(4, num_prompt_tokens=10, max_tokens=50)
    add_all(scheduler, requests)
    run_until(scheduler, lambda: scheduler.num_preemptions > 0)
    (parked,) = [r for r in requests if r.status is RequestStatus.PREEMPTED]
    assert scheduler.waiting.peek() is parked


def test_parked_time_and_count_are_kept() -> None:
    scheduler = create_scheduler(num_kv_cells=64)
    first, second = create_requests(2, num_prompt_tokens=10, max_tokens=50)
    add_all(scheduler, [first, second])
    now = 0.0
    while scheduler.has_work:
        now += 1.0
        run_step(scheduler, now)
    assert second.num_preemptions == scheduler.num_preemptions == 1
    assert first.num_preemptions == 0
    assert second.parked_s > 10.0
    assert second.first_token_at == 1.0
    assert second.prefill_parked_s == 0.0


def test_time_parked_before_the_first_token_is_told_apart() -> None:
    scheduler = create_scheduler(max_num_seqs=1, max_num_batched_tokens=32, max_chunk_tokens=32)
    (reader,) = create_requests(1, num_prompt_tokens=200, max_tokens=2)
    add_all(scheduler, [reader])
    run_step(scheduler, 1.0)
    scheduler._batch.park(reader, 2.0)
    now = 10.0
    while scheduler.has_work:
        run_step(scheduler, now)
        now += 1.0
    assert reader.prefill_parked_s == reader.parked_s == 8.0


def test_admission_keeps_some_cells_free_for_what_runs() -> None:
    scheduler = create_scheduler(num_kv_cells=100)
    add_all(scheduler, create_requests(2, num_prompt_tokens=40))
    assert run_step(scheduler).tokens == {"default-0": 40}


def test_request_as_large_as_the_cache_runs_alone() -> None:
    scheduler = create_scheduler(num_kv_cells=100)
    (small,), (large,) = (
        create_requests(1, max_tokens=4, source="a"),
        create_requests(1, num_prompt_tokens=99, source="b"),
    )
    add_all(scheduler, [small, large])
    steps = run_to_end(scheduler)
    assert [s.ended for s in steps if s.ended] == [{small.request_id: "length"}, {large.request_id: "length"}]
    assert scheduler.num_preemptions == 0


def test_two_long_prompts_that_fill_the_cache_do_not_lock_each_other() -> None:
    scheduler = create_scheduler(num_kv_cells=400, max_num_batched_tokens=64, max_chunk_tokens=64)
    add_all(scheduler, talking := create_requests(2, num_prompt_tokens=10, max_tokens=300, source="a"))
    add_all(scheduler, create_requests(1, num_prompt_tokens=160, max_tokens=200, source="b"))
    add_all(scheduler, create_requests(1, num_prompt_tokens=160, max_tokens=200, source="c"))
    steps = run_to_end(scheduler, limit=3000)
    assert len({name for s in steps for name in s.ended}) == 2 + len(talking)


# ---- the runner finds no room although the count said otherwise -------------------------------------


def test_out_of_room_parks_one_and_nobody_fails() -> None:
    scheduler = create_scheduler()
    requests = create_requests(3, max_tokens=5)
    add_all(scheduler, requests)
    run_step(scheduler)
    step = run_step(scheduler, num_real_cells=0)
    assert step.outputs == []
    assert [r.status for r in requests].count(RequestStatus.PREEMPTED) == 1
    steps = run_to_end(scheduler)
    for request in requests:
        assert [i for s in steps for name, i in s.drawn if name == request.request_id] == [1, 2, 3, 4]


def test_after_running_out_nobody_joins_until_someone_has_left() -> None:
    scheduler = create_scheduler()
    (leaver,) = create_requests(1, num_prompt_tokens=20, max_tokens=5, source="a")
    (stayer,) = create_requests(1, num_prompt_tokens=20, max_tokens=50, source="b")
    (victim,) = create_requests(1, num_prompt_tokens=10, max_tokens=50, source="c")
    add_all(scheduler, [leaver, stayer, victim])
    run_step(scheduler)
    run_step(scheduler, num_real_cells=0)
    steps = run_until(scheduler, lambda: leaver.is_finished)
    assert all(victim.request_id not in s.tokens for s in steps)
    assert victim.request_id in run_step(scheduler).tokens


@pytest.mark.parametrize("num_real_cells", [80, 120, 200])
def test_runner_with_less_room_than_counted_still_serves_everyone(num_real_cells: int) -> None:
    scheduler = create_scheduler(num_kv_cells=4096)
    requests = [r for s in "abcd" for r in create_requests(2, source=s, num_prompt_tokens=30, max_tokens=20)]
    add_all(scheduler, requests)
    num_steps, drawn, ended = 0, [], []
    while scheduler.has_work:
        step = run_step(scheduler, num_real_cells=num_real_cells)
        drawn += step.drawn
        ended += step.ended.items()
        num_steps += 1
        assert num_steps < 1000, "no progress"
    assert sorted(ended) == sorted((r.request_id, "length") for r in requests)
    assert sorted(drawn) == sorted((r.request_id, i) for r in requests for i in range(20))


def test_lone_request_without_room_ends_with_its_length() -> None:
    scheduler = create_scheduler()
    (request,) = create_requests(1, max_tokens=50)
    scheduler.add(request)
    run_step(scheduler)
    step = run_step(scheduler, num_real_cells=0)
    assert step.ended == {request.request_id: "length"}
    assert step.outputs[0].output_index == 1, "the token that was drawn stays"
    run_to_end(scheduler)
    assert scheduler.cache.num_used == 0


def test_prefill_without_room_is_computed_later() -> None:
    scheduler = create_scheduler()
    requests = create_requests(2)
    add_all(scheduler, requests)
    run_step(scheduler, num_real_cells=0)
    assert [r.num_computed_tokens for r in requests] == [0, 0]
    steps = run_to_end(scheduler)
    assert sum(len(s.drawn) for s in steps) == 2 * 16
