"""How fast it was lately: intervals, quantiles, and what has become too old."""

from __future__ import annotations

import pytest

from homeai.server.pace import INTERVAL_S, NUM_INTERVALS, Durations, Pace

NOW = 100 * INTERVAL_S


def test_quantiles_are_right_to_a_sixth() -> None:
    durations = Durations()
    for milliseconds in range(1, 1001):
        durations.add(milliseconds / 1000)
    for part in (0.05, 0.5, 0.95, 1.0):
        assert part <= durations.quantile(part) <= part * 7 / 6 + 1e-4


def test_of_nothing_there_is_no_quantile() -> None:
    assert Durations().quantile(0.5) is None


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 1e6])
def test_any_length_is_counted(seconds: float) -> None:
    durations = Durations()
    durations.add(seconds)
    assert durations.quantile(0.5) is not None


def test_durations_add_up() -> None:
    short, long = Durations(), Durations()
    short.add(0.01)
    long.add(10.0)
    both = Durations([short, long])
    assert both.quantile(0.5) == short.quantile(0.5)
    assert both.quantile(1.0) == long.quantile(1.0)


def test_each_interval_has_its_own_and_the_last_is_not_over() -> None:
    pace = Pace()
    pace.step(100, 4, NOW)
    pace.step(20, 4, NOW + INTERVAL_S - 1)
    pace.step(0, 7, NOW + INTERVAL_S + 2.5)
    look = pace.look(NOW + INTERVAL_S + 2.5)
    assert (look.read[-2:], look.written[-2:], look.last_s) == ([120, 0], [8, 7], 2.5)
    assert len(look.read) == len(look.written) == NUM_INTERVALS
    assert sum(look.read) == 120


def test_intervals_in_which_nothing_was_are_gaps() -> None:
    pace = Pace()
    pace.first_token("voice", 0.2, NOW)
    pace.gap("voice", 0.05, NOW + 2 * INTERVAL_S)
    voice = pace.look(NOW + 2 * INTERVAL_S).classes["voice"]
    assert [value is None for value in voice.ttft_s[-3:]] == [False, True, True]
    assert [value is None for value in voice.itl_s[-3:]] == [True, True, False]
    assert voice.ttft_p50_s == voice.ttft_p95_s == voice.ttft_s[-3]


def test_what_is_too_old_is_forgotten_although_nothing_came_since() -> None:
    pace = Pace()
    pace.first_token("voice", 0.2, NOW)
    pace.step(1, 1, NOW)
    assert pace.look(NOW + (NUM_INTERVALS - 1) * INTERVAL_S).read[0] == 1
    later = pace.look(NOW + NUM_INTERVALS * INTERVAL_S)
    assert sum(later.read) == 0
    assert later.classes == {}
