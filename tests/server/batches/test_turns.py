"""Whose line is next, and how long a batch is left alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from homeai.server.batches.turns import FIRST_RETRY_S, MAX_RETRY_S, MAX_TOLD_RETRY_S, next_turn, retry_s


@dataclass(frozen=True)
class Waiting:
    name: str
    source: str


LONG, LATER, SHORT = Waiting("long", "ann"), Waiting("later", "ann"), Waiting("short", "bob")


def test_sources_take_turns_and_their_batches_come_in_order() -> None:
    served_at: dict[str, int] = {}
    order = []
    for turn in range(4):
        chosen = next_turn([LONG, LATER, SHORT], served_at)
        assert chosen is not None
        served_at[chosen.source] = turn
        order.append(chosen)
    assert order == [LONG, SHORT, LONG, SHORT]


def test_nobody_is_next_when_nobody_waits() -> None:
    assert next_turn([], {}) is None


@pytest.mark.parametrize(
    ("num_failures", "told_s", "wait_s"),
    [
        (1, None, FIRST_RETRY_S),
        (2, None, 2 * FIRST_RETRY_S),
        (3, 1.0, 4 * FIRST_RETRY_S),
        (1, 30.0, 30.0),
        (1000, None, MAX_RETRY_S),
        (1, 1e9, MAX_TOLD_RETRY_S),
    ],
)
def test_retry_waits_longer_each_time_and_at_least_as_long_as_told(
    num_failures: int, told_s: float | None, wait_s: float
) -> None:
    assert retry_s(num_failures, told_s) == wait_s
