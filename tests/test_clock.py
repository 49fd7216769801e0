from __future__ import annotations

import subprocess
import sys
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


def test_age_of_a_process_begins_with_its_interpreter() -> None:
    code = "import homeai.clock as c, time; time.sleep(0.05); print(c.process_age_s())"
    before = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.04 <= float(result.stdout) <= time.monotonic() - before + 0.02
