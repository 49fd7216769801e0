"""Several requests that begin alike arrive at once: one computes the beginning, the others wait for it (I1)."""

from __future__ import annotations

from homeai.policy import SourcePolicy
from homeai.request import Request, SamplingParams, WaitReason
from tests.scheduling.factories import add_all, create_scheduler, run_step, run_to_end, run_until

HEAD = list(range(2000, 2400))


def alike(n: int, *, source: str = "", fairness_class: str = "interactive", **changes: bool) -> list[Request]:
    return [
        Request(
            f"{fairness_class}-{i}",
            [*HEAD, 3000 + i, *range(40)],
            SamplingParams(max_tokens=4),
            source=source or f"s{i}",
            fairness_class=fairness_class,
            **changes,  # type: ignore[arg-type]
        )
        for i in range(n)
    ]


def test_common_beginning_is_computed_once() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=128, max_chunk_tokens=128)
    add_all(scheduler, requests := alike(8))
    steps = run_to_end(scheduler)
    assert sum(step.plan.num_prefill_tokens for step in steps) == 400 + 8 * 41
    assert sorted(r.num_cached_tokens for r in requests) == [0] + [400] * 7


def test_who_waits_for_it_says_so() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=128, max_chunk_tokens=128)
    add_all(scheduler, requests := alike(2))
    run_step(scheduler)
    assert scheduler.wait_reason(requests[1]) is WaitReason.SHARED_PREFIX


def test_others_are_not_held_up() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=128, max_chunk_tokens=64)
    add_all(scheduler, alike(3))
    other = Request("other", list(range(50)), SamplingParams(max_tokens=4), source="z")
    scheduler.add(other)
    assert "other" in run_step(scheduler).tokens


def test_heavier_class_does_not_wait_for_a_lighter_one() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=128, max_chunk_tokens=64)
    add_all(scheduler, alike(1, source="nas", fairness_class="background"))
    run_step(scheduler)
    add_all(scheduler, spoken := alike(1, source="kitchen", fairness_class="voice"))
    assert spoken[0].request_id in run_step(scheduler).tokens


def test_end_of_who_computes_it_lets_another_one_begin() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=128, max_chunk_tokens=128)
    add_all(scheduler, requests := alike(3))
    run_step(scheduler)
    scheduler.abort(requests[0].request_id, 0.0)
    run_until(scheduler, lambda: not scheduler.has_work)
    assert all(r.is_finished for r in requests)
    assert sorted(r.num_cached_tokens for r in requests[1:]) == [0, 400]  # what was aborted is not kept here


def test_private_source_and_uncached_request_compute_their_own() -> None:
    scheduler = create_scheduler(max_kept_cells=None, sources={"s1": SourcePolicy(private=True)})
    add_all(scheduler, requests := alike(2))
    add_all(scheduler, uncached := alike(1, fairness_class="voice", cache_prompt=False))
    run_to_end(scheduler)
    assert [r.num_cached_tokens for r in (*requests, *uncached)] == [0, 0, 0]
