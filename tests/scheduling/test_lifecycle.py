"""How requests end: by themselves, aborted in any state, or timed out."""

from __future__ import annotations

import msgspec
import pytest

from homeai.request import FinishReason, Grammar, Request, RequestStatus
from homeai.scheduling.deadlines import MAX_STALE_ENTRIES
from homeai.scheduling.scheduler import Scheduler
from tests.scheduling.factories import (
    END_TOKEN,
    TOKEN,
    Step,
    add_all,
    create_requests,
    create_scheduler,
    run_step,
    run_to_end,
)

# ---- finish reasons ---------------------------------------------------------------------------------


def draw(tokens: list[int], **request: int | bool) -> list[Step]:
    """The steps of one request that draws `tokens`, until it ends."""
    scheduler = create_scheduler()
    (only,) = create_requests(1, **request)  # type: ignore[arg-type]
    scheduler.add(only)
    steps = []
    for token in tokens:
        steps.append(run_step(scheduler, tokens={only.request_id: token}))
        if only.is_finished:
            break
    return steps


def test_no_tokens_wanted_computes_the_prompt_and_draws_none() -> None:
    (step,) = draw([TOKEN] * 3, max_tokens=0)
    assert step.drawn == []
    assert step.ended == {"default-0": "length"}
    assert step.outputs[0].output_index == 0


def test_no_tokens_wanted_of_a_long_prompt_takes_all_its_chunks() -> None:
    scheduler = create_scheduler(mode="continuous")
    add_all(scheduler, create_requests(1, num_prompt_tokens=600, max_tokens=0))
    steps = run_to_end(scheduler)
    assert sum(s.plan.num_tokens for s in steps) == 600
    assert [s.ended for s in steps[:3]] == [{}, {}, {"default-0": "length"}]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_exactly_max_tokens_are_drawn(max_tokens: int) -> None:
    steps = draw([TOKEN] * 9, max_tokens=max_tokens)
    assert [index for step in steps for _, index in step.drawn] == list(range(max_tokens))
    assert steps[-1].ended == {"default-0": "length"}


def test_end_token_stops() -> None:
    steps = draw([TOKEN, END_TOKEN, TOKEN])
    assert len(steps) == 2
    assert steps[-1].ended == {"default-0": "stop"}


def test_end_token_as_the_last_allowed_one_is_a_stop() -> None:
    assert draw([TOKEN, END_TOKEN], max_tokens=2)[-1].ended == {"default-0": "stop"}


def test_ignored_end_token_does_not_stop() -> None:
    steps = draw([END_TOKEN] * 9, max_tokens=3, ignore_eos=True)
    assert (len(steps), steps[-1].ended) == (3, {"default-0": "length"})


@pytest.mark.parametrize(("min_tokens", "num_drawn"), [(0, 1), (1, 2), (3, 4)])
def test_end_token_counts_after_min_tokens(min_tokens: int, num_drawn: int) -> None:
    steps = draw([END_TOKEN] * 9, min_tokens=min_tokens)
    assert (len(steps), steps[-1].ended) == (num_drawn, {"default-0": "stop"})


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 9}])
def test_end_token_of_a_grammar_stops_whatever_else_was_asked_for(sampling: dict[str, int | bool]) -> None:
    """The sampler draws one there only where the grammar leaves nothing else."""
    scheduler = create_scheduler()
    (request,) = create_requests(1)
    params = msgspec.structs.replace(request.sampling, grammar=Grammar("start: /a/"), **sampling)
    only = Request("held", request.prompt_token_ids, params)
    scheduler.add(only)
    assert run_step(scheduler, tokens={"held": END_TOKEN}).ended == {"held": "stop"}


@pytest.mark.parametrize(("num_prompt_tokens", "num_drawn"), [(90, 10), (99, 1), (100, 1)])
def test_models_length_ends_a_request(num_prompt_tokens: int, num_drawn: int) -> None:
    scheduler = create_scheduler(max_model_len=100, num_kv_cells=100)
    add_all(scheduler, create_requests(1, num_prompt_tokens=num_prompt_tokens, max_tokens=50))
    steps = run_to_end(scheduler)
    assert sum(len(s.drawn) for s in steps) == num_drawn
    assert [s.ended for s in steps if s.ended] == [{"default-0": "length"}]


def test_end_comes_with_the_last_token_and_once() -> None:
    steps = draw([TOKEN] * 9, max_tokens=2)
    assert [o.finish_reason for step in steps for o in step.outputs] == [None, FinishReason.LENGTH]


def test_impossible_prompts_are_refused() -> None:
    scheduler = create_scheduler(max_model_len=100)
    for num_prompt_tokens in (0, 101):
        (request,) = create_requests(1, num_prompt_tokens=num_prompt_tokens)
        with pytest.raises(AssertionError, match="lengths"):
            scheduler.add(request)
    assert not scheduler.has_work


def test_live_request_cannot_be_added_twice() -> None:
    scheduler = create_scheduler()
    (request,) = create_requests(1)
    scheduler.add(request)
    with pytest.raises(AssertionError, match="live already"):
        scheduler.add(request)


def test_cache_smaller_than_the_longest_request_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"200 tokens .* 100 cells"):
        create_scheduler(max_model_len=200, num_kv_cells=100)


# ---- abort ------------------------------------------------------------------------------------------


def waiting() -> tuple[Scheduler, Request]:
    scheduler = create_scheduler(max_num_seqs=1)
    other, request = create_requests(2)
    add_all(scheduler, [other, request])
    run_step(scheduler)
    return scheduler, request


def never_seen() -> tuple[Scheduler, Request]:
    scheduler = create_scheduler()
    (request,) = create_requests(1)
    scheduler.add(request)
    return scheduler, request


def partial_prefill() -> tuple[Scheduler, Request]:
    scheduler = create_scheduler(mode="continuous")
    (request,) = create_requests(1, num_prompt_tokens=1000)
    scheduler.add(request)
    run_step(scheduler)
    assert 0 < request.num_computed_tokens < 1000
    return scheduler, request


def decoding() -> tuple[Scheduler, Request]:
    scheduler = create_scheduler()
    (request,) = create_requests(1)
    scheduler.add(request)
    for _ in range(3):
        run_step(scheduler)
    return scheduler, request


def preempted() -> tuple[Scheduler, Request]:
    scheduler = create_scheduler(num_kv_cells=64)
    requests = create_requests(2, num_prompt_tokens=10, max_tokens=50)
    add_all(scheduler, requests)
    while not scheduler.num_preemptions:
        run_step(scheduler)
    (request,) = [r for r in requests if r.status is RequestStatus.PREEMPTED]
    return scheduler, request


EVERY_STATE = pytest.mark.parametrize("state", [never_seen, waiting, partial_prefill, decoding, preempted])


@EVERY_STATE
def test_abort_ends_a_request_in_every_state(state) -> None:
    scheduler, request = state()
    output = scheduler.abort(request.request_id, 0.0)
    assert output is not None
    assert (output.token, output.finish_reason) == (None, FinishReason.ABORT)
    assert output.output_index == request.num_output_tokens
    assert request.is_finished
    assert request.request_id not in scheduler.requests


@EVERY_STATE
def test_abort_frees_cells_slot_and_place_in_line(state) -> None:
    scheduler, request = state()
    scheduler.abort(request.request_id, 0.0)
    assert scheduler.cache.num_used == sum(r.num_computed_tokens for r in scheduler.running)
    assert request not in scheduler.running
    run_to_end(scheduler)
    assert scheduler.cache.num_used == 0
    assert not scheduler.waiting
    assert not list(scheduler.share.classes.backlogged())


@EVERY_STATE
def test_repeated_abort_is_harmless(state) -> None:
    scheduler, request = state()
    scheduler.abort(request.request_id, 0.0)
    assert scheduler.abort(request.request_id, 0.0) is None
    assert scheduler.abort("never-heard-of", 0.0) is None


def test_abort_touches_nobody_else() -> None:
    scheduler = create_scheduler()
    requests = create_requests(4, max_tokens=6)
    add_all(scheduler, requests)
    run_step(scheduler)
    scheduler.abort(requests[1].request_id, 0.0)
    drawn = [d for step in run_to_end(scheduler) for d in step.drawn]
    for other in (requests[0], *requests[2:]):
        assert [index for name, index in drawn if name == other.request_id] == list(range(1, 6))


def test_abort_reports_the_reason_it_was_given() -> None:
    scheduler, request = decoding()
    output = scheduler.abort(request.request_id, 0.0, FinishReason.STOP)
    assert output is not None
    assert output.finish_reason is request.finish_reason is FinishReason.STOP


def test_sequence_of_an_aborted_request_is_dropped_though_nobody_is_left() -> None:
    scheduler, request = decoding()
    scheduler.abort(request.request_id, 0.0)
    assert scheduler.has_work
    plan = run_step(scheduler).plan
    assert (plan.chunks, len(plan.kv_ops)) == ([], 1)
    assert not scheduler.has_work


# ---- queue time-outs --------------------------------------------------------------------------------


def test_request_that_waited_too_long_ends() -> None:
    scheduler = create_scheduler(max_num_seqs=1, queue_timeouts_s={"voice": 20.0})
    running, patient = create_requests(2)
    (hasty,) = create_requests(1, source="hasty", fairness_class="voice", arrival_at=1.0)
    add_all(scheduler, [running])
    run_step(scheduler)
    add_all(scheduler, [patient, hasty])
    assert scheduler.expire(20.9) == []
    (output,) = scheduler.expire(21.0)
    assert (output.request_id, output.finish_reason) == (hasty.request_id, FinishReason.TIMEOUT)
    assert scheduler.expire(1e9) == [], "a class without a time-out waits for ever"


def test_running_request_does_not_time_out() -> None:
    scheduler = create_scheduler(queue_timeouts_s={"interactive": 1.0})
    add_all(scheduler, create_requests(1, num_prompt_tokens=600))
    run_step(scheduler)
    assert scheduler.expire(100.0) == []


def test_parked_request_does_not_time_out() -> None:
    scheduler = create_scheduler(num_kv_cells=64, queue_timeouts_s={"interactive": 1.0})
    add_all(scheduler, create_requests(2, num_prompt_tokens=10, max_tokens=50))
    while not scheduler.num_preemptions:
        run_step(scheduler)
    assert scheduler.expire(100.0) == []
    assert len(scheduler.requests) == 2


def test_name_used_again_has_its_own_deadline() -> None:
    scheduler = create_scheduler(queue_timeouts_s={"interactive": 10.0})
    for arrival_at in (0.0, 9.0):
        (request,) = create_requests(1, arrival_at=arrival_at)
        scheduler.add(request)
        assert scheduler.expire(arrival_at + 1) == []
        if arrival_at == 0.0:
            scheduler.abort(request.request_id, 0.0)
    assert scheduler.expire(10.5) == []
    assert [o.request_id for o in scheduler.expire(19.0)] == [request.request_id]


def test_deadlines_of_finished_requests_do_not_pile_up() -> None:
    scheduler = create_scheduler(queue_timeouts_s={"interactive": 3600.0})
    for request in create_requests(5000):
        scheduler.add(request)
        scheduler.abort(request.request_id, 0.0)
    assert len(scheduler._deadlines._heap) <= MAX_STALE_ENTRIES + 2
