"""Where time comes from. Only the engine loop and the edges read a clock; decisions take `now`."""

from __future__ import annotations

import time
from typing import Protocol


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
