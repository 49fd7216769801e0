"""Coming back into a new engine: nobody is lost, and who ends engines is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homeai.server.comeback import Comeback


def test_those_that_ran_come_back_one_by_one_and_the_others_together() -> None:
    comeback = Comeback()
    assert comeback.engine_died(["a", "b"], ["c", "d"]) is None
    assert (comeback.next(), comeback.next()) == (["a"], [])
    assert comeback.passed("a")
    assert comeback.next() == ["b"]
    assert comeback.passed("b")
    assert comeback.next() == ["c", "d"]


def test_group_has_passed_when_all_of_it_have() -> None:
    comeback = Comeback()
    comeback.engine_died([], ["c", "d"])
    comeback.next()
    assert [comeback.passed(name) for name in ("c", "x", "d")] == [False, False, True]


def test_who_is_alone_on_trial_when_the_engine_dies_is_to_blame() -> None:
    comeback = Comeback()
    comeback.engine_died(["a", "b"], [])
    comeback.next()
    assert comeback.engine_died(["a"], []) == "a"
    assert comeback.next() == ["b"]


def test_engine_that_was_killed_from_outside_accuses_nobody() -> None:
    comeback = Comeback()
    comeback.engine_died(["a", "b"], [])
    comeback.next()
    assert comeback.engine_died(["a"], [], by_itself=False) is None
    assert comeback.next() == ["b"]
    assert comeback.passed("b")
    assert comeback.next() == ["a"]


def test_who_waits_since_an_earlier_death_comes_first() -> None:
    """Else engines that die often would keep it out for good."""
    comeback = Comeback()
    comeback.engine_died(["a", "b", "c"], [])
    comeback.next()
    comeback.passed("a")
    comeback.engine_died(["a"], [], by_itself=False)
    order = []
    while names := comeback.next():
        order += names
        comeback.passed(*names)
    assert order == ["b", "c", "a"]


def test_group_that_was_on_trial_comes_back_one_by_one() -> None:
    comeback = Comeback()
    comeback.engine_died([], ["c", "d"])
    comeback.next()
    assert comeback.engine_died([], ["c", "d"]) is None
    assert comeback.next() == ["c"]


def test_who_left_does_not_come_back() -> None:
    comeback = Comeback()
    comeback.engine_died(["a", "b"], ["c"])
    comeback.next()
    assert [comeback.withdraw(name) for name in ("a", "b", "c", "c")] == [False, True, True, False]
    assert comeback.passed("a")
    assert comeback.next() == []


@given(st.integers(1, 8), st.data())
def test_one_poisoned_request_among_many_is_the_only_one_that_fails(count: int, data: st.DataObject) -> None:
    """Whoever it is, whether it ran before or not."""
    names = [f"r{i}" for i in range(count)]
    poison = data.draw(st.sampled_from(names))
    proven = {name for name in names if name != poison and data.draw(st.booleans())}
    failed = run(names, proven, lambda inside: poison in inside)
    assert failed == [poison]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_nobody_fails_of_an_accident(count: int) -> None:
    names = [f"r{i}" for i in range(count)]
    deaths = iter([True])
    assert run(names, set(names), lambda inside: next(deaths, False)) == []


def run(names: list[str], ran: set[str], kills: Callable[[set[str]], bool]) -> list[str]:
    """Who fails until all others have drawn a token in an engine that survived it."""
    comeback, failed, inside = Comeback(), [], set(names)
    for _ in range(40):
        if kills(inside):
            blamed = comeback.engine_died(
                [n for n in names if n in ran and n not in failed and n in inside],
                [n for n in names if n not in ran and n not in failed and n in inside],
            )
            if blamed is not None:
                failed.append(blamed)
            inside = set()
        else:
            for name in list(inside):
                ran.add(name)
                comeback.passed(name)
        inside |= set(comeback.next())
        if inside == set(names) - set(failed) and not comeback.next() and not kills(inside):
            return failed
    raise AssertionError("it never came to an end")
