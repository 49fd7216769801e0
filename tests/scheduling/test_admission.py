"""Who is in the next batch, and with how many tokens."""

from __future__ import annotations

import pytest

from homeai.request import Request, RequestStatus, SamplingParams, WaitReason
from tests.scheduling.factories import (
    add_all,
    chunk_of,
    create_requests,
    create_scheduler,
    different_prompts,
    run_step,
    run_to_end,
    run_until,
)

# ---- iteration-level batching -----------------------------------------------------------------------


def test_newcomer_joins_at_the_next_step() -> None:
    scheduler = create_scheduler()
    first, second = create_requests(2)
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    step = run_step(scheduler)
    assert step.tokens == {first.request_id: 1, second.request_id: 10}
    assert step.plan.admitted == [second.request_id]


def test_request_leaves_the_batch_at_the_step_of_its_last_token() -> None:
    scheduler = create_scheduler()
    (short,), (long,) = create_requests(1, max_tokens=2, source="a"), create_requests(1, max_tokens=5, source="b")
    add_all(scheduler, [short, long])
    run_step(scheduler)
    assert run_step(scheduler).ended == {short.request_id: "length"}
    assert run_step(scheduler).tokens == {long.request_id: 1}


def test_freed_slot_is_taken_at_the_next_step() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    first, second = create_requests(2, max_tokens=1)
    add_all(scheduler, [first, second])
    assert run_step(scheduler).tokens == {first.request_id: 10}
    assert run_step(scheduler).tokens == {second.request_id: 10}


def test_short_prompt_draws_its_first_token_in_its_first_step() -> None:
    scheduler = create_scheduler()
    (request,) = create_requests(1)
    scheduler.add(request)
    step = run_step(scheduler, now=3.0)
    assert step.drawn == [(request.request_id, 0)]
    assert (request.admitted_at, request.first_token_at) == (3.0, 3.0)


def test_request_is_admitted_once_however_often_it_is_parked() -> None:
    scheduler = create_scheduler(num_kv_cells=128)
    add_all(scheduler, create_requests(3, num_prompt_tokens=20, max_tokens=60))
    admitted = [r for step in run_to_end(scheduler) for r in step.plan.admitted]
    assert scheduler.num_preemptions > 0
    assert sorted(admitted) == ["default-0", "default-1", "default-2"]


# ---- decodes first, inside the token budget ---------------------------------------------------------


def test_decodes_come_before_prefills() -> None:
    scheduler = create_scheduler()
    talking, reading = create_requests(2, num_prompt_tokens=10)
    scheduler.add(talking)
    run_step(scheduler)
    scheduler.add(reading)
    plan = run_step(scheduler).plan
    assert [c.request_id for c in plan.chunks] == [talking.request_id, reading.request_id]
    assert (plan.num_decode_tokens, plan.num_prefill_tokens) == (1, 10)


def test_decodes_use_up_the_budget_before_prefills_get_the_rest() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=32, max_chunk_tokens=32)
    add_all(scheduler, talking := create_requests(4, num_prompt_tokens=2, source="a"))
    run_step(scheduler)
    add_all(scheduler, [document := create_requests(1, num_prompt_tokens=100, source="b")[0]])
    step = run_step(scheduler)
    assert step.tokens == {r.request_id: 1 for r in talking} | {document.request_id: 28}


def test_every_stream_moves_in_every_step_of_a_long_prompt() -> None:
    scheduler = create_scheduler()
    add_all(scheduler, talking := create_requests(3, max_tokens=100, source="a"))
    run_step(scheduler)
    (document,) = create_requests(1, num_prompt_tokens=1500, source="b")
    scheduler.add(document)
    for step in run_until(scheduler, lambda: document.num_output_tokens > 0):
        assert {r.request_id for r in talking} <= step.tokens.keys()


def test_budget_is_kept_by_several_prefills_together() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=100, max_chunk_tokens=80)
    add_all(scheduler, create_requests(5, num_prompt_tokens=70))
    assert run_step(scheduler).tokens == {"default-0": 70, "default-1": 30}
    assert run_step(scheduler).tokens == {"default-0": 1, "default-1": 40, "default-2": 59}


@pytest.mark.parametrize(("max_num_seqs", "budget"), [(9, 8), (2, 1)])
def test_budget_that_cannot_hold_a_decode_of_each_is_refused(max_num_seqs: int, budget: int) -> None:
    with pytest.raises(AssertionError, match=f"{max_num_seqs} decodes .* {budget} tokens"):
        create_scheduler(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_chunk_tokens=1)


def test_budget_of_one_token_still_serves() -> None:
    scheduler = create_scheduler(max_num_seqs=1, max_num_batched_tokens=1, max_chunk_tokens=1)
    add_all(scheduler, create_requests(2, num_prompt_tokens=3, max_tokens=2))
    assert len(run_to_end(scheduler)) == 2 * (3 + 1) + 1, "and a last step that drops the KV"


# ---- max_num_seqs -----------------------------------------------------------------------------------


def test_no_more_requests_run_than_there_are_sequences() -> None:
    scheduler = create_scheduler(max_num_seqs=3)
    add_all(scheduler, create_requests(10))
    for step in run_to_end(scheduler):
        assert len(step.plan.chunks) <= 3
        assert {c.seq_id for c in step.plan.chunks} <= {0, 1, 2}


def test_live_sequences_have_the_lowest_free_ids() -> None:
    scheduler = create_scheduler()
    first, second, third = create_requests(3)
    add_all(scheduler, [first, second])
    run_step(scheduler)
    scheduler.abort(first.request_id, 0.0)
    scheduler.add(third)
    assert chunk_of(run_step(scheduler), third).seq_id == 0


# ---- chunked prefill --------------------------------------------------------------------------------


def test_long_prompt_is_cut_into_chunks() -> None:
    scheduler = create_scheduler(mode="continuous", max_chunk_tokens=256)
    (request,) = create_requests(1, num_prompt_tokens=600)
    scheduler.add(request)
    steps = [run_step(scheduler) for _ in range(4)]
    assert [chunk_of(s, request)[2:5] for s in steps] == [(0, 256, 0), (256, 256, 0), (512, 88, 1), (600, 1, 1)]


def test_one_budget_serves_chunks_of_several_prompts() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=512, max_chunk_tokens=256)
    for source in "abc":
        add_all(scheduler, create_requests(1, num_prompt_tokens=300, source=source))
    assert run_step(scheduler).tokens == {"a-0": 256, "b-0": 256}


def test_without_chunking_a_prompt_is_computed_whole() -> None:
    scheduler = create_scheduler(chunked_prefill=False)
    (request,) = create_requests(1, num_prompt_tokens=600)
    scheduler.add(request)
    step = run_step(scheduler)
    assert step.tokens == {request.request_id: 600}
    assert step.drawn == [(request.request_id, 0)]


def test_without_chunking_only_a_prompt_alone_exceeds_the_budget() -> None:
    scheduler = create_scheduler(chunked_prefill=False, max_num_batched_tokens=512)
    add_all(scheduler, create_requests(3, num_prompt_tokens=300, max_tokens=1))
    assert [run_step(scheduler).tokens for _ in range(3)] == [{f"default-{i}": 300} for i in range(3)]


def test_without_chunking_short_prompts_share_a_step() -> None:
    scheduler = create_scheduler(chunked_prefill=False, max_num_batched_tokens=512)
    add_all(scheduler, create_requests(6, num_prompt_tokens=100))
    assert run_step(scheduler).tokens == {f"default-{i}": 100 for i in range(5)}


def test_without_chunking_a_prompt_larger_than_the_free_cells_waits_whole() -> None:
    scheduler = create_scheduler(chunked_prefill=False, num_kv_cells=400)
    (small,), (large,) = (
        create_requests(1, num_prompt_tokens=100, source="a"),
        create_requests(1, num_prompt_tokens=350, source="b"),
    )
    add_all(scheduler, [small, large])
    steps = run_until(scheduler, lambda: large.status is RequestStatus.RUNNING)
    assert steps[-1].tokens == {large.request_id: 350}
    assert small.num_output_tokens == 16


# ---- order ------------------------------------------------------------------------------------------


def test_source_is_served_in_order_of_arrival() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    requests = create_requests(4, max_tokens=1)
    add_all(scheduler, requests)
    assert [run_step(scheduler).plan.admitted for _ in requests] == [[r.request_id] for r in requests]


def test_least_served_source_goes_next() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    add_all(scheduler, create_requests(2, source="greedy", num_prompt_tokens=500, max_tokens=1))
    add_all(scheduler, create_requests(2, source="modest", num_prompt_tokens=10, max_tokens=1))
    admitted = [r for step in run_to_end(scheduler) for r in step.plan.admitted]
    assert admitted == ["greedy-0", "modest-0", "modest-1", "greedy-1"]


def test_equally_served_sources_go_by_arrival() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    add_all(scheduler, create_requests(1, source="z", arrival_at=1.0), create_requests(1, source="a", arrival_at=2.0))
    assert run_step(scheduler, now=3.0).plan.admitted == ["z-0"]


def test_two_arrivals_at_the_same_instant_are_both_served() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    groups = [create_requests(1, source=source, max_tokens=1) for source in "ab"]
    add_all(scheduler, *groups)
    admitted = [r for step in run_to_end(scheduler) for r in step.plan.admitted]
    assert admitted == ["a-0", "b-0"]


def test_long_prompt_cannot_keep_a_newcomer_of_another_source_out() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=256, max_chunk_tokens=256)
    (document,) = create_requests(1, num_prompt_tokens=3000, source="reader")
    scheduler.add(document)
    run_step(scheduler)
    (question,) = create_requests(1, num_prompt_tokens=20, source="talker")
    scheduler.add(question)
    steps = run_until(scheduler, lambda: question.num_output_tokens > 0)
    assert len(steps) <= 2
    assert document.num_computed_tokens < 1000


def test_long_prompt_keeps_a_newcomer_of_its_own_source_behind_it() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=256, max_chunk_tokens=256)
    first, second = create_requests(2, num_prompt_tokens=1000)
    add_all(scheduler, [first, second])
    run_until(scheduler, lambda: second.status is RequestStatus.RUNNING)
    assert first.num_computed_tokens == 1000


def test_tie_goes_to_what_runs_already() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=100, max_chunk_tokens=100)
    (document,) = create_requests(1, num_prompt_tokens=300, source="reader")
    scheduler.add(document)
    run_step(scheduler)
    (newcomer,) = create_requests(1, num_prompt_tokens=50, source="talker")
    scheduler.add(newcomer)  # lifted to exactly what the reader has had
    assert scheduler.share.of_class("interactive")["talker"] == scheduler.share.of_class("interactive")["reader"]
    assert run_step(scheduler).tokens == {document.request_id: 100}
    assert run_step(scheduler).tokens == {newcomer.request_id: 50, document.request_id: 50}


def test_tie_between_classes_goes_to_the_heavier() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    for fairness_class in ("background", "voice", "interactive"):
        add_all(scheduler, create_requests(1, source=fairness_class, fairness_class=fairness_class))
    assert run_step(scheduler).plan.admitted == ["voice-0"]


def test_nobody_overtakes_a_head_that_does_not_fit() -> None:
    scheduler = create_scheduler(num_kv_cells=400)
    (talking,) = create_requests(1, num_prompt_tokens=100, max_tokens=40, source="a")
    scheduler.add(talking)
    run_step(scheduler)
    (large,) = create_requests(1, num_prompt_tokens=350, source="b", arrival_at=1.0)
    (small,) = create_requests(1, num_prompt_tokens=10, source="c", arrival_at=2.0)
    add_all(scheduler, [large, small])
    run_until(scheduler, lambda: small.status is RequestStatus.RUNNING)
    assert large.admitted_at is not None


# ---- why a request waits ----------------------------------------------------------------------------


def test_who_runs_does_not_wait() -> None:
    scheduler = create_scheduler()
    (request,) = create_requests(1)
    scheduler.add(request)
    run_step(scheduler)
    assert scheduler.wait_reason(request) is None


@pytest.mark.parametrize(
    ("config", "num_prompt_tokens", "reason"),
    [
        ({"max_num_batched_tokens": 100, "max_chunk_tokens": 100}, 100, WaitReason.TOKEN_BUDGET),
        ({"max_num_seqs": 1}, 10, WaitReason.SEQUENCE_SLOT),
        ({"num_kv_cells": 256}, 150, WaitReason.KV_SPACE),
        ({"mode": "single"}, 10, WaitReason.SINGLE_MODE),
        ({"mode": "static", "max_num_seqs": 1}, 10, WaitReason.BATCH_MODE),
    ],
)
def test_wait_reason_names_what_keeps_it_out(
    config: dict[str, object], num_prompt_tokens: int, reason: WaitReason
) -> None:
    scheduler = create_scheduler(**config)
    add_all(scheduler, requests := create_requests(2, num_prompt_tokens=num_prompt_tokens))
    run_step(scheduler)
    assert scheduler.wait_reason(requests[1]) is reason


def test_short_prompt_behind_a_long_one_of_its_source_starts_in_the_same_step() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_batched_tokens=100, max_chunk_tokens=100)
    (long,) = create_requests(1, num_prompt_tokens=1000)
    scheduler.add(long)
    assert run_step(scheduler).tokens == {long.request_id: 100}
    short = Request("short", different_prompts(20), SamplingParams(max_tokens=4))
    scheduler.add(short)
    assert run_step(scheduler).tokens == {long.request_id: 50, "short": 20}


def test_long_prompt_takes_all_of_the_step_when_nobody_could_join() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_seqs=1, max_num_batched_tokens=100, max_chunk_tokens=100)
    add_all(scheduler, create_requests(2, num_prompt_tokens=1000))
    assert run_step(scheduler).tokens == {"default-0": 100}
