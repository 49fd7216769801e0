"""The door: may one more request of this class wait? Decided from counts, before anything queues.

Pure: one instance counts what was let in, started and ended, and measures how fast waiting requests start.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from homeai.errors import TooManyRequests

WINDOW = 32  # starts per class that the drain rate is measured over
MIN_RETRY_S = 1.0
MAX_RETRY_S = 120.0


class Door:
    """Bounds the waiting requests of each class. Those that a free slot will take at once do not wait."""

    def __init__(self, max_waiting: Mapping[str, int], max_num_seqs: int) -> None:
        self._max_waiting = max_waiting
        self._max_num_seqs = max_num_seqs
        self._pending: Counter[str] = Counter()  # let in, not started, by class
        self._num_running = 0
        self._started_at: dict[str, deque[float]] = {}

    def num_waiting(self, fairness_class: str) -> int:
        return self._pending[fairness_class]

    def check(self, fairness_class: str, count: int, now: float) -> None:
        """Raises `TooManyRequests` when `count` more of the class would exceed its bound."""
        free_slots = max(0, self._max_num_seqs - self._num_running)
        beyond_slots = self._pending.total() + count - free_slots
        waiting = min(beyond_slots, self._pending[fairness_class] + count)
        limit = self._max_waiting[fairness_class]
        if waiting > limit:
            retry_after_s = self.retry_after_s(fairness_class, now)
            raise TooManyRequests(
                f"too many {fairness_class} requests are waiting: {waiting} > {limit} maximum; "
                f"try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )

    def enter(self, fairness_class: str) -> None:
        self._pending[fairness_class] += 1

    def start(self, fairness_class: str, now: float) -> None:
        self._pending[fairness_class] -= 1
        self._num_running += 1
        self._started_at.setdefault(fairness_class, deque(maxlen=WINDOW)).append(now)

    def leave(self, fairness_class: str, *, started: bool) -> None:
        if started:
            self._num_running -= 1
        else:
            self._pending[fairness_class] -= 1

    def retry_after_s(self, fairness_class: str, now: float) -> float:
        """When a place will be free, by the rate at which requests of the class started lately."""
        starts = self._started_at.get(fairness_class)
        if not starts:
            return MIN_RETRY_S
        per_start_s = (now - starts[0]) / len(starts)
        return min(max(per_start_s, MIN_RETRY_S), MAX_RETRY_S)
