"""Virtual token counters: what is charged, who is lifted, and what the weights do."""

from __future__ import annotations

import pytest

from homeai.scheduling.fairness import MAX_IDLE_SOURCES, FairShare, RecentService, VirtualCounter
from tests.scheduling.factories import (
    WEIGHTS,
    add_all,
    create_requests,
    create_scheduler,
    run_step,
    run_to_end,
    run_until,
)

PROMPT, OUTPUT = 1.0, 2.0


# ---- one level --------------------------------------------------------------------------------------


def test_returning_source_is_lifted_to_the_least_served_that_waits() -> None:
    counter = VirtualCounter()
    for owner, cost in (("a", 100.0), ("b", 300.0)):
        counter.charge(owner, cost)
        counter.enter(owner)
    counter.enter("returning")
    assert counter["returning"] == 100.0


def test_returning_source_keeps_a_higher_counter() -> None:
    counter = VirtualCounter()
    counter.enter("a")
    counter.charge("returning", 500.0)
    counter.enter("returning")
    assert counter["returning"] == 500.0


def test_source_that_returns_to_an_empty_queue_is_lifted_to_the_last_to_leave() -> None:
    counter = VirtualCounter()
    for owner in ("early", "last"):
        counter.enter(owner)
    for owner, cost in (("early", 900.0), ("last", 200.0)):
        counter.charge(owner, cost)
        counter.leave(owner)
    counter.enter("returning")
    assert counter["returning"] == 200.0


def test_only_the_first_waiting_request_lifts() -> None:
    counter = VirtualCounter()
    counter.enter("a")
    counter.enter("b")
    counter.charge("a", 50.0)
    counter.enter("b")
    assert counter["b"] == 0.0


def test_source_is_backlogged_until_its_last_request_leaves() -> None:
    counter = VirtualCounter()
    counter.enter("a")
    counter.enter("a")
    counter.leave("a")
    assert list(counter.backlogged()) == ["a"]
    counter.leave("a")
    assert list(counter.backlogged()) == []


def test_counters_of_ever_new_names_stay_bounded() -> None:
    counter = VirtualCounter()
    for i in range(3 * MAX_IDLE_SOURCES):
        counter.enter(f"name-{i}")
        counter.charge(f"name-{i}", 1.0)
        counter.leave(f"name-{i}")
        assert len(counter._value) <= MAX_IDLE_SOURCES + 1


def test_forgotten_source_earns_nothing_by_it() -> None:
    counter = VirtualCounter()
    for i in range(MAX_IDLE_SOURCES + 2):
        counter.enter(f"name-{i}")
        counter.charge(f"name-{i}", float(i + 1))
        counter.leave(f"name-{i}")
    assert counter["name-0"] == 0.0, "forgotten"
    counter.enter("name-0")
    assert counter["name-0"] > MAX_IDLE_SOURCES


def test_waiting_source_is_never_forgotten() -> None:
    counter = VirtualCounter()
    counter.enter("waiting")
    counter.charge("waiting", 0.5)
    for i in range(2 * MAX_IDLE_SOURCES):
        counter.enter(f"name-{i}")
        counter.charge(f"name-{i}", 1.0)
        counter.leave(f"name-{i}")
    assert counter["waiting"] == 0.5


# ---- two levels -------------------------------------------------------------------------------------


def test_class_counter_grows_by_cost_over_weight() -> None:
    share = FairShare(WEIGHTS)
    share.charge("voice", "kitchen", 80.0)
    share.charge("background", "indexer", 80.0)
    assert (share.classes["voice"], share.classes["background"]) == (10.0, 80.0)
    assert share.of_class("voice")["kitchen"] == share.of_class("background")["indexer"] == 80.0


def test_source_has_a_counter_per_class() -> None:
    share = FairShare(WEIGHTS)
    share.charge("voice", "phone", 80.0)
    assert share.of_class("coding")["phone"] == 0.0


def test_class_without_a_weight_weighs_one() -> None:
    assert FairShare({}).weight("made-up") == 1.0


# ---- what the scheduler charges ---------------------------------------------------------------------


def test_each_token_is_charged_once() -> None:
    scheduler = create_scheduler()
    add_all(scheduler, create_requests(2, num_prompt_tokens=600, max_tokens=5))
    run_to_end(scheduler)
    assert scheduler.share.of_class("interactive")["default"] == 2 * (600 * PROMPT + 5 * OUTPUT)


def test_tokens_are_charged_when_they_are_planned() -> None:
    scheduler = create_scheduler(max_num_batched_tokens=100, max_chunk_tokens=100)
    add_all(scheduler, create_requests(1, num_prompt_tokens=150))
    counter = scheduler.share.of_class("interactive")
    scheduler.schedule(0.0)
    assert counter["default"] == 100 * PROMPT


def test_first_output_token_is_charged() -> None:
    scheduler = create_scheduler()
    add_all(scheduler, create_requests(1, num_prompt_tokens=10))
    run_step(scheduler)
    assert scheduler.share.of_class("interactive")["default"] == 10 * PROMPT + 1 * OUTPUT


def test_no_output_is_charged_where_none_is_wanted() -> None:
    scheduler = create_scheduler()
    add_all(scheduler, create_requests(1, num_prompt_tokens=10, max_tokens=0))
    run_to_end(scheduler)
    assert scheduler.share.of_class("interactive")["default"] == 10 * PROMPT


def test_recomputation_is_free() -> None:
    scheduler = create_scheduler(num_kv_cells=64)
    for source in "ab":
        add_all(scheduler, create_requests(1, source=source, num_prompt_tokens=10, max_tokens=50))
    charged: dict[str, float] = {"a": 0.0, "b": 0.0}
    charge = scheduler.share.charge

    def recording(fairness_class: str, source: str, cost: float) -> None:
        charged[source] += cost
        charge(fairness_class, source, cost)

    scheduler.share.charge = recording  # type: ignore[method-assign]
    run_to_end(scheduler)
    assert scheduler.num_preemptions > 0
    assert charged == {"a": 10 * PROMPT + 50 * OUTPUT, "b": 10 * PROMPT + 50 * OUTPUT}


def test_tokens_that_found_no_room_are_not_charged_again() -> None:
    scheduler = create_scheduler()
    for source in "ab":
        add_all(scheduler, create_requests(1, source=source, num_prompt_tokens=10, max_tokens=4))
    run_step(scheduler, num_real_cells=0)
    run_to_end(scheduler)
    counter = scheduler.share.of_class("interactive")
    assert counter["a"] + counter["b"] == 2 * (10 * PROMPT + 4 * OUTPUT)


def test_weights_of_the_tokens_can_be_set() -> None:
    scheduler = create_scheduler(prompt_token_weight=0.5, output_token_weight=4.0)
    add_all(scheduler, create_requests(1, num_prompt_tokens=10, max_tokens=3))
    run_to_end(scheduler)
    assert scheduler.share.of_class("interactive")["default"] == 10 * 0.5 + 3 * 4.0


def test_idle_source_has_saved_nothing_up() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    add_all(scheduler, create_requests(40, source="busy", num_prompt_tokens=100, max_tokens=1))
    run_until(scheduler, lambda: len(scheduler.waiting) == 20)
    add_all(scheduler, create_requests(20, source="returning", num_prompt_tokens=100, max_tokens=1))
    admitted = [r.split("-")[0] for step in run_to_end(scheduler) for r in step.plan.admitted]
    assert abs(admitted[:20].count("returning") - 10) <= 1


def test_source_with_many_requests_gets_no_more_than_one_with_few() -> None:
    scheduler = create_scheduler(max_num_seqs=2)
    add_all(scheduler, create_requests(100, source="flood", num_prompt_tokens=50, max_tokens=10))
    add_all(scheduler, few := create_requests(10, source="trickle", num_prompt_tokens=50, max_tokens=10))
    run_until(scheduler, lambda: all(r.is_finished for r in few))
    num_flood = 100 - sum(r.source == "flood" for r in scheduler.requests.values())
    assert num_flood <= 11


@pytest.mark.parametrize("heavy", ["voice", "interactive", "coding"])
def test_backlogged_classes_share_by_weight(heavy: str) -> None:
    scheduler = create_scheduler(max_num_seqs=4)
    classes = (heavy, "background")
    for fairness_class in classes:
        add_all(
            scheduler,
            create_requests(
                2000, source=fairness_class, fairness_class=fairness_class, num_prompt_tokens=50, max_tokens=10
            ),
        )
    run_until(scheduler, lambda: len(scheduler.requests) < 2500)
    assert set(scheduler.share.classes.backlogged()) == set(classes)
    served = {c: scheduler.share.of_class(c)[c] for c in classes}
    assert served[heavy] / served["background"] == pytest.approx(WEIGHTS[heavy], rel=0.05)


def test_lowest_class_is_served_beside_a_flood_of_the_highest() -> None:
    scheduler = create_scheduler(max_num_seqs=2)
    add_all(scheduler, create_requests(1000, source="v", fairness_class="voice", num_prompt_tokens=40, max_tokens=10))
    (document,) = create_requests(1, source="d", fairness_class="background", num_prompt_tokens=400, max_tokens=2)
    run_step(scheduler)
    scheduler.add(document)
    run_until(scheduler, lambda: document.is_finished, limit=1000)


# ---- what was lately --------------------------------------------------------------------------------


def test_service_of_late_fades_by_its_half_life() -> None:
    lately: RecentService[str] = RecentService(half_life_s=60.0)
    lately.add("a", 8.0)
    lately.fade(60.0)
    lately.add("b", 4.0)
    assert lately.most(2) == [("a", 4.0), ("b", 4.0)]
    lately.fade(180.0)
    assert lately.most(1) == [("a", 1.0)]
    assert lately.share("b") == 0.5


def test_whoever_was_served_long_ago_is_forgotten() -> None:
    lately: RecentService[str] = RecentService(half_life_s=60.0)
    for number in range(1000):
        lately.add(f"name-{number}", 1.0)
    lately.fade(3600.0)
    assert lately.most(1000) == []


def test_each_source_s_service_is_told_with_its_class() -> None:
    scheduler = create_scheduler()
    add_all(scheduler, create_requests(1, num_prompt_tokens=10, max_tokens=3, source="kitchen", fairness_class="voice"))
    run_to_end(scheduler)
    assert scheduler.share.lately.most(9) == [(("voice", "kitchen"), 10 * PROMPT + 3 * OUTPUT)]
