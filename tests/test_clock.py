from __future__ import annotations

import time

import pytest

from homeai.clock import MonotonicClock, VirtualClock


def test_virtual_clock_moves_only_when_told() -> None:
    clock = VirtualClock(start=5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance(2.5)
    clock.advance(0.0)
    assert clock.now() == 7.5


def test_virtual_clock_does_not_go_back() -> None:
    with pytest.raises(AssertionError, match="does not go back"):
        VirtualClock().advance(-0.1)


def test_monotonic_clock_is_the_one_that_all_processes_share() -> None:
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    now = MonotonicClock().now()
    assert before <= now <= time.clock_gettime(time.CLOCK_MONOTONIC)
