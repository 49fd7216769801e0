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
        self._drain: dict[str, deque[float]] = {}  # when the class's queue began, then its last starts

    def check(self, fairness_class: str, count: int, now: float) -> None:
        """Raises `TooManyRequests` when `count` more of the class would exceed its bound."""
        free_slots = max(0, self._max_num_seqs - self._num_running)
        beyond_slots = self._pending.total() + count - free_slots
        waiting = min(beyond_slots, self._pending[fairness_class] + count)
        limit = self._max_waiting[fairness_class]
        if waiting > limit:
            retry_after_s = self.retry_after_s(fairness_class, now, num_places=waiting - limit)
            raise TooManyRequests(
                f"too many {fairness_class} requests are waiting: {waiting} > {limit} maximum; "
                f"try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )

    def enter(self, fairness_class: str, now: float) -> None:
        if not self._pending[fairness_class]:
            self._drain[fairness_class] = deque([now], maxlen=WINDOW + 1)  # how long nobody came is not a rate
        self._pending[fairness_class] += 1

    def start(self, fairness_class: str, now: float) -> None:
        self._pending[fairness_class] -= 1
        self._num_running += 1
        self._drain[fairness_class].append(now)

    def leave(self, fairness_class: str, *, started: bool) -> None:
        if started:
            self._num_running -= 1
        else:
            self._pending[fairness_class] -= 1

    def expected_wait_s(self, fairness_class: str, now: float, place: int) -> float | None:
        """Of the `place`-th in its class's queue (from 1), by the same rate; None until one has started."""
        drain = self._drain.get(fairness_class)
        return place * (now - drain[0]) / (len(drain) - 1) if drain and len(drain) > 1 else None

    def retry_after_s(self, fairness_class: str, now: float, *, num_places: int = 1) -> float:
        """When so many places will be free, by the rate at which the class's queue has been starting."""
        drain = self._drain.get(fairness_class)
        if drain is None:
            return MIN_RETRY_S
        per_start_s = (now - drain[0]) / max(1, len(drain) - 1)
        return min(max(num_places * per_start_s, MIN_RETRY_S), MAX_RETRY_S)
