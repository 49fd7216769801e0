"""Where time comes from. Only the engine loop and the edges read a clock; decisions take `now`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol


def process_age_s() -> float:
    """Since the start of this process, the interpreter's own included, to 10 ms. 0 where /proc does not tell."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    ticks = int(stat.rpartition(")")[2].split()[19])  # proc_pid_stat(5): starttime, field 22
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since an arbitrary fixed instant; never goes back."""
        ...


class MonotonicClock:
    """The machine's clock, shared by all processes of one boot (`CLOCK_MONOTONIC`)."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told: simulations run thousands of requests in milliseconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time does not go back"
        self._now += seconds
