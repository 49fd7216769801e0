"""How fast it has been lately: first tokens, gaps between tokens, tokens read and written, in intervals of seconds.

Pure: time is an argument. Gaps are told for every token, so an interval counts them in logarithmic steps of a sixth
and never grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final

from homeai.status import ClassPaceStatus, PaceStatus

INTERVAL_S: Final = 10.0
NUM_INTERVALS: Final = 60
BOUNDS_S: Final = tuple(0.001 * (7 / 6) ** i for i in range(84))  # 1 ms to 6 min


class Durations:
    """How often each length came, to a sixth of it."""

    __slots__ = ("_counts", "_total")

    def __init__(self, parts: Iterable[Durations] = ()) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total = 0
        for part in parts:
            self._counts = [a + b for a, b in zip(self._counts, part._counts, strict=True)]
            self._total += part._total

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total += 1

    def quantile(self, part: float) -> float | None:
        """Such that `part` of them are no longer, rounded up to the next step; None of nothing."""
        if not self._total:
            return None
        wanted, count = part * self._total, 0
        for bound_s, number in zip(BOUNDS_S, self._counts, strict=False):
            count += number
            if count >= wanted:
                return round(bound_s, 4)
        return round(BOUNDS_S[-1], 4)


class _Interval:
    """What fell into one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_read = 0
        self.num_written = 0
        self.ttfts: dict[str, Durations] = {}  # by class
        self.gaps: dict[str, Durations] = {}


class Pace:
    """The last intervals; those in which nothing was are not there."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=NUM_INTERVALS)

    def step(self, num_prefill_tokens: int, num_decode_tokens: int, now: float) -> None:
        interval = self._at(now)
        interval.num_read += num_prefill_tokens
        interval.num_written += num_decode_tokens

    def first_token(self, fairness_class: str, seconds: float, now: float) -> None:
        _of(self._at(now).ttfts, fairness_class).add(seconds)

    def gap(self, fairness_class: str, seconds: float, now: float) -> None:
        _of(self._at(now).gaps, fairness_class).add(seconds)

    def _at(self, now: float) -> _Interval:
        number = int(now / INTERVAL_S)
        if not self._intervals or self._intervals[-1].number != number:
            self._intervals.append(_Interval(number))
        return self._intervals[-1]

    def look(self, now: float) -> PaceStatus:
        """The last `NUM_INTERVALS`, the oldest first. The last one is not over yet."""
        last = int(now / INTERVAL_S)
        known = {i.number: i for i in self._intervals if i.number > last - NUM_INTERVALS}
        intervals = [known.get(number) for number in range(last - NUM_INTERVALS + 1, last + 1)]
        classes = {name for i in known.values() for name in (*i.ttfts, *i.gaps)}
        return PaceStatus(
            interval_s=INTERVAL_S,
            last_s=round(now - last * INTERVAL_S, 2),
            read=[i.num_read if i else 0 for i in intervals],
            written=[i.num_written if i else 0 for i in intervals],
            classes={name: _class_pace(intervals, name) for name in sorted(classes)},
        )


def _of(durations: dict[str, Durations], fairness_class: str) -> Durations:
    try:
        return durations[fairness_class]
    except KeyError:
        return durations.setdefault(fairness_class, Durations())


def _class_pace(intervals: list[_Interval | None], name: str) -> ClassPaceStatus:
    ttfts = [i.ttfts.get(name) if i else None for i in intervals]
    gaps = [i.gaps.get(name) if i else None for i in intervals]
    all_ttfts, all_gaps = Durations(d for d in ttfts if d), Durations(d for d in gaps if d)
    return ClassPaceStatus(
        ttft_s=[d.quantile(0.95) if d else None for d in ttfts],
        itl_s=[d.quantile(0.95) if d else None for d in gaps],
        ttft_p50_s=all_ttfts.quantile(0.5),
        ttft_p95_s=all_ttfts.quantile(0.95),
        itl_p50_s=all_gaps.quantile(0.5),
        itl_p95_s=all_gaps.quantile(0.95),
    )
