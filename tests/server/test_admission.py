"""Rules of the door: who may still wait, and when to come back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.errors import TooManyRequests
from homeai.server.admission import MAX_RETRY_S, MIN_RETRY_S, Door

CLASSES = ("voice", "background")


def make_door(*, voice: int = 2, background: int = 3, max_num_seqs: int = 2) -> Door:
    return Door({"voice": voice, "background": background}, max_num_seqs)


def occupy(door: Door, count: int, fairness_class: str = "background") -> None:
    """Requests that run."""
    for _ in range(count):
        door.enter(fairness_class, 0.0)
        door.start(fairness_class, 0.0)


def fill(door: Door, count: int, fairness_class: str = "voice", now: float = 0.0) -> None:
    """Requests that wait."""
    for _ in range(count):
        door.check(fairness_class, 1, now)
        door.enter(fairness_class, now)


def refusal(door: Door, fairness_class: str = "voice", count: int = 1, now: float = 0.0) -> TooManyRequests:
    with pytest.raises(TooManyRequests) as caught:
        door.check(fairness_class, count, now)
    return caught.value


# ---- bounds --------------------------------------------------------------------------------------------


def test_class_waits_up_to_its_bound() -> None:
    door = make_door(voice=2)
    occupy(door, 2)
    fill(door, 2)
    assert "3 > 2 maximum" in refusal(door).message


def test_full_class_keeps_no_other_out() -> None:
    door = make_door(voice=2)
    occupy(door, 2)
    fill(door, 2, "voice")
    door.check("background", 1, 0.0)


def test_free_slots_do_not_count_as_waiting() -> None:
    door = make_door(voice=0, max_num_seqs=2)
    fill(door, 2)  # neither has started, but both will at the next step
    assert refusal(door)


def test_slot_that_another_class_is_about_to_take_is_not_free() -> None:
    door = make_door(voice=0, max_num_seqs=1)
    fill(door, 1, "background")
    assert refusal(door)


def test_slot_that_becomes_free_makes_room_in_the_queue() -> None:
    door = make_door(voice=1, max_num_seqs=1)
    occupy(door, 1)
    fill(door, 1)
    assert refusal(door)
    door.leave("background", started=True)
    door.start("voice", 1.0)
    door.check("voice", 1, 1.0)


def test_several_are_let_in_all_or_none() -> None:
    door = make_door(voice=2)
    occupy(door, 2)
    assert "3 > 2 maximum" in refusal(door, count=3).message
    door.check("voice", 2, 0.0)


def test_request_that_leaves_unstarted_makes_room() -> None:
    door = make_door(voice=1)
    occupy(door, 2)
    fill(door, 1)
    door.leave("voice", started=False)
    door.check("voice", 1, 0.0)


# ---- when to come back ---------------------------------------------------------------------------------


def test_retry_after_is_the_measured_time_per_start() -> None:
    door = make_door(voice=4)
    occupy(door, 2)
    fill(door, 4, now=100.0)
    for now in (105.0, 110.0, 115.0):
        door.start("voice", now)
        fill(door, 1, now=now)
    assert refusal(door, now=115.0).retry_after_s == pytest.approx(5.0)


def test_expected_wait_is_the_same_rate_for_each_place_before_it() -> None:
    door = make_door(voice=4)
    occupy(door, 2)
    fill(door, 4, now=100.0)
    assert door.expected_wait_s("voice", 105.0, 1) is None
    for now in (105.0, 110.0):
        door.start("voice", now)
    assert [door.expected_wait_s("voice", 110.0, place) for place in (1, 2)] == [5.0, 10.0]
    assert door.expected_wait_s("nobody", 110.0, 1) is None


def test_more_places_take_longer() -> None:
    door = make_door(voice=2)
    occupy(door, 2)
    fill(door, 2, now=100.0)
    door.start("voice", 104.0)
    assert refusal(door, count=3, now=104.0).retry_after_s == pytest.approx(2 * 4.0)


def test_queue_that_has_not_moved_yet_says_how_long_it_has_stood() -> None:
    door = make_door(voice=1)
    occupy(door, 2)
    fill(door, 1, now=100.0)
    assert refusal(door, now=130.0).retry_after_s == pytest.approx(30.0)


def test_time_in_which_nobody_came_does_not_count() -> None:
    door = make_door(voice=1)
    occupy(door, 2, "voice")
    fill(door, 1, now=10_000.0)
    assert refusal(door, now=10_002.0).retry_after_s == pytest.approx(2.0)


def test_retry_after_is_bounded() -> None:
    door = make_door(voice=1)
    occupy(door, 2)
    assert door.retry_after_s("voice", 0.0) == MIN_RETRY_S
    fill(door, 1, now=0.0)
    assert refusal(door, now=0.001).retry_after_s == MIN_RETRY_S
    assert refusal(door, now=1e6).retry_after_s == MAX_RETRY_S


# ---- whatever happens ----------------------------------------------------------------------------------


def admits(door: Door, fairness_class: str, now: float) -> bool:
    try:
        door.check(fairness_class, 1, now)
    except TooManyRequests:
        return False
    return True


Moves = st.lists(st.tuples(st.sampled_from(["enter", "start", "leave"]), st.sampled_from(CLASSES), st.integers(0, 9)))


@settings(derandomize=True, deadline=None, max_examples=300)
@given(Moves)
def test_door_is_as_new_when_all_have_left(moves: list[tuple[str, str, int]]) -> None:
    door = make_door(voice=1, background=1, max_num_seqs=2)
    inside: list[tuple[str, bool]] = []  # class, started
    for now, (move, fairness_class, pick) in enumerate(moves):
        waiting = [i for i, (_, started) in enumerate(inside) if not started]
        if move == "enter" and admits(door, fairness_class, now):
            door.enter(fairness_class, now)
            inside.append((fairness_class, False))
            assert inside.count((fairness_class, False)) <= 1 + 2, "its place, and slots that others may yet take"
        elif move == "start" and waiting and len(inside) - len(waiting) < 2:
            index = waiting[pick % len(waiting)]
            inside[index] = (inside[index][0], True)
            door.start(inside[index][0], now)
        elif move == "leave" and inside:
            left_class, started = inside.pop(pick % len(inside))
            door.leave(left_class, started=started)
    for left_class, started in inside:
        door.leave(left_class, started=started)
    for fairness_class in CLASSES:
        door.check(fairness_class, 3, 0.0)  # two slots and one place
        with pytest.raises(TooManyRequests):
            door.check(fairness_class, 4, 0.0)
