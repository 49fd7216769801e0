"""What a class is promised: first tokens in time, at somebody else's cost only within bounds; caps; seats."""

from __future__ import annotations

import pytest

from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import Request, RequestStatus, WaitReason
from homeai.scheduling.preemption import MIN_STAY_S
from homeai.scheduling.scheduler import Scheduler
from tests.scheduling.factories import add_all, create_requests, create_scheduler, run_step, run_until

CLASSES = {
    "voice": ClassPolicy(weight=8.0, ttft_target_s=0.5),
    "interactive": ClassPolicy(weight=4.0, ttft_target_s=2.0),
    "background": ClassPolicy(weight=1.0),
}
LATER = MIN_STAY_S + 1.0


def voice(n: int = 1, arrival_at: float = LATER, **changes: object) -> list[Request]:
    return create_requests(n, source="kitchen", fairness_class="voice", arrival_at=arrival_at, **changes)  # type: ignore[arg-type]


def documents(n: int, source: str = "nas", **changes: object) -> list[Request]:
    return create_requests(n, source=source, fairness_class="background", max_tokens=500, **changes)  # type: ignore[arg-type]


def full_house(**config: object) -> tuple[Scheduler, list[Request]]:
    """Two documents hold both seats."""
    scheduler = create_scheduler(mode="continuous", max_num_seqs=2, classes=CLASSES, **config)
    running = [*documents(1, "nas"), *documents(1, "tv")]
    add_all(scheduler, running)
    run_step(scheduler, 0.0)
    return scheduler, running


# ---- a first token that is due ----------------------------------------------------------------------


def test_due_request_takes_the_seat_of_a_lower_class() -> None:
    scheduler, running = full_house()
    add_all(scheduler, spoken := voice())
    step = run_step(scheduler, LATER + 0.5)
    assert spoken[0].request_id in step.tokens
    assert [r.status for r in running].count(RequestStatus.PREEMPTED) == 1


def test_request_that_is_not_due_waits_for_a_seat() -> None:
    scheduler, running = full_house()
    add_all(scheduler, spoken := voice())
    step = run_step(scheduler, LATER)
    assert spoken[0].request_id not in step.tokens
    assert scheduler.wait_reason(spoken[0]) is WaitReason.SEQUENCE_SLOT
    assert all(r.status is RequestStatus.RUNNING for r in running)


def test_who_was_parked_comes_back_to_its_place() -> None:
    scheduler, running = full_house()
    add_all(scheduler, spoken := voice(max_tokens=3))
    run_step(scheduler, LATER + 0.5)
    (parked,) = [r for r in running if r.status is RequestStatus.PREEMPTED]
    num_computed = parked.num_computed_tokens
    run_until(scheduler, lambda: spoken[0].is_finished)
    step = run_step(scheduler, LATER + 1.0)
    assert parked.status is RequestStatus.RUNNING
    (chunk,) = [c for c in step.plan.chunks if c.request_id == parked.request_id]
    assert (chunk.start, chunk.num_tokens) == (num_computed, 1), "nothing is computed again"
    assert parked.num_recomputed_tokens == 0


def test_who_was_parked_has_a_while_before_it_is_parked_again() -> None:
    scheduler, running = full_house()
    add_all(scheduler, first := voice(max_tokens=1))
    run_step(scheduler, LATER + 0.5)
    (parked,) = [r for r in running if r.num_preemptions]
    assert first[0].is_finished
    run_step(scheduler, LATER + 1.0)
    assert parked.status is RequestStatus.RUNNING
    for r in running:
        r.num_preemptions = 1
        r.joined_at = LATER + 1.0
    add_all(scheduler, second := create_requests(1, source="hall", fairness_class="voice", arrival_at=LATER + 1.0))
    assert second[0].request_id not in run_step(scheduler, LATER + 1.0 + MIN_STAY_S - 0.1).tokens
    assert second[0].request_id in run_step(scheduler, LATER + 1.0 + MIN_STAY_S).tokens


def test_due_request_comes_in_even_if_everybody_just_sat_down() -> None:
    scheduler, _ = full_house()
    add_all(scheduler, spoken := voice(arrival_at=0.1))
    assert spoken[0].request_id in run_step(scheduler, 0.5).tokens


def test_nobody_is_parked_where_it_would_not_help() -> None:
    """A chat holds most of the cells; parking the small documents would not make room for the question."""
    scheduler = create_scheduler(mode="continuous", num_kv_cells=400, classes=CLASSES)
    add_all(scheduler, create_requests(1, source="phone", num_prompt_tokens=250, max_tokens=140))
    add_all(scheduler, small := documents(1, num_prompt_tokens=20))
    run_step(scheduler, 0.0)
    run_step(scheduler, 0.0)
    add_all(scheduler, voice(num_prompt_tokens=300))
    run_step(scheduler, LATER + 5.0)
    assert scheduler.num_preemptions == 0
    assert small[0].status is RequestStatus.RUNNING


def test_nobody_is_parked_in_vain_after_the_runner_ran_out() -> None:
    scheduler = create_scheduler(mode="continuous", classes=CLASSES)
    running = [r for source in "abcde" for r in documents(1, source)]
    add_all(scheduler, running)
    run_step(scheduler, 0.0)
    run_step(scheduler, 0.0, num_real_cells=0)
    num_before = scheduler.num_preemptions
    add_all(scheduler, voice())
    run_step(scheduler, LATER + 5.0)
    assert scheduler.num_preemptions == num_before


def test_equals_are_not_parked() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_seqs=2, classes=CLASSES)
    add_all(scheduler, [*voice(1, 0.0, max_tokens=500)], running := documents(1))
    run_step(scheduler, 0.0)
    add_all(scheduler, late := create_requests(2, source="hall", fairness_class="voice", arrival_at=LATER))
    step = run_step(scheduler, LATER + 1.0)
    assert late[0].request_id in step.tokens
    assert late[1].request_id not in step.tokens, "only the document could give way"
    assert running[0].status is RequestStatus.PREEMPTED


def test_due_prefill_goes_before_those_served_less() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_batched_tokens=32, max_chunk_tokens=32, classes=CLASSES)
    add_all(scheduler, document := documents(1, num_prompt_tokens=300))
    scheduler.share.charge("voice", "kitchen", 800.0)  # 100 more than the document's class, by weight
    add_all(scheduler, spoken := voice(num_prompt_tokens=64, arrival_at=0.0))
    assert set(run_step(scheduler, 0.1).tokens) == {document[0].request_id}
    assert set(run_step(scheduler, 0.5).tokens) == {spoken[0].request_id}


def test_hurry_is_bounded_by_a_credit() -> None:
    scheduler, _ = full_house()
    add_all(scheduler, documents(1, "phone"))  # another one of the class that has had nothing
    scheduler.share.charge("voice", "kitchen", 8.0 * 1e6)
    add_all(scheduler, spoken := voice())
    assert spoken[0].request_id not in run_step(scheduler, LATER + 5.0).tokens


def test_hurry_above_the_share_cap_does_not_count() -> None:
    capped = CLASSES | {"voice": ClassPolicy(weight=8.0, ttft_target_s=0.5, share_cap=0.3)}
    scheduler = create_scheduler(mode="continuous", max_num_seqs=2, classes=capped)
    add_all(scheduler, documents(1, "nas"), documents(1, "tv"), documents(1, "phone"))
    run_step(scheduler, 0.0)
    scheduler.share.recent.add("voice", 10_000.0)
    add_all(scheduler, spoken := voice())
    assert spoken[0].request_id not in run_step(scheduler, LATER + 5.0).tokens


# ---- seats ------------------------------------------------------------------------------------------


def test_one_source_does_not_keep_every_seat_while_another_waits() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_seqs=3, classes=CLASSES)
    add_all(scheduler, greedy := create_requests(5, source="laptop", max_tokens=500))
    run_step(scheduler, 0.0)
    add_all(scheduler, other := create_requests(1, source="phone"))
    step = run_step(scheduler, 0.1)
    assert other[0].request_id in step.tokens
    assert sum(r.status is RequestStatus.RUNNING for r in greedy) == 2


def test_stream_of_a_heavier_class_does_not_give_way_at_once() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_seqs=2, classes=CLASSES)
    add_all(scheduler, spoken := voice(2, 0.0, max_tokens=500))
    run_step(scheduler, 0.0)
    add_all(scheduler, other := documents(1, "nas", arrival_at=0.1))
    assert other[0].request_id not in run_step(scheduler, 1.0).tokens
    assert all(r.status is RequestStatus.RUNNING for r in spoken)
    assert other[0].request_id in run_step(scheduler, 4.0).tokens


def test_single_seat_is_not_passed_to_and_fro() -> None:
    scheduler = create_scheduler(mode="continuous", max_num_seqs=1, classes=CLASSES)
    add_all(scheduler, first := create_requests(1, source="laptop"))
    run_step(scheduler, 0.0)
    add_all(scheduler, documents(1))
    run_step(scheduler, 0.1)
    assert first[0].status is RequestStatus.RUNNING


# ---- caps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "sources", "reason"),
    [
        ({"interactive": ClassPolicy(max_running=2)}, {}, WaitReason.CLASS_CAP),
        ({"interactive": ClassPolicy(kv_cap=0.05)}, {}, WaitReason.CLASS_CAP),
        ({}, {"laptop": SourcePolicy(max_running=2)}, WaitReason.SOURCE_CAP),
        ({}, {"laptop": SourcePolicy(kv_cap=0.05)}, WaitReason.SOURCE_CAP),
    ],
)
def test_caps_hold_and_others_pass(
    classes: dict[str, ClassPolicy], sources: dict[str, SourcePolicy], reason: WaitReason
) -> None:
    scheduler = create_scheduler(mode="continuous", classes=CLASSES | classes, sources=sources)  # 5 % of 4096 is 204
    add_all(scheduler, capped := create_requests(4, source="laptop", num_prompt_tokens=90))
    add_all(scheduler, other := documents(1))
    step = run_step(scheduler, 0.0)
    assert [r.request_id in step.tokens for r in capped] == [True, True, False, False]
    assert other[0].request_id in step.tokens
    assert scheduler.wait_reason(capped[2]) is reason


def test_a_request_larger_than_its_cap_runs_alone() -> None:
    scheduler = create_scheduler(classes=CLASSES, sources={"laptop": SourcePolicy(kv_cap=0.01)})
    add_all(scheduler, large := create_requests(1, source="laptop", num_prompt_tokens=300))
    assert large[0].request_id in run_step(scheduler, 0.0).tokens


def test_many_capped_sources_keep_nobody_else_out() -> None:
    capped = CLASSES | {"background": ClassPolicy(max_running=1), "interactive": ClassPolicy(weight=0.5)}
    scheduler = create_scheduler(mode="continuous", classes=capped)
    for number in range(40):
        add_all(scheduler, documents(1, f"nas-{number}"))
    add_all(scheduler, other := create_requests(1, source="phone"))
    assert other[0].request_id in run_step(scheduler, 0.0).tokens


def test_sources_beyond_those_looked_at_wait_without_holding_others_up() -> None:
    sources = {f"nas-{number}": SourcePolicy(max_running=1) for number in range(40)}
    scheduler = create_scheduler(mode="continuous", max_num_seqs=50, num_seqs=50, sources=sources, classes=CLASSES)
    for source in sources:
        add_all(scheduler, documents(2, source))
    run_step(scheduler, 0.0)
    add_all(scheduler, other := create_requests(1, source="phone", arrival_at=1.0))
    assert other[0].request_id in run_step(scheduler, 1.0).tokens
