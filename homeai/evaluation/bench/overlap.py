"""How often a house asks two things at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]  # begin and end of a request, seconds


def overlap_share(spans: Iterable[Span]) -> float:
    """Of the time in which anybody was served, the part in which more than one was; 0 without any."""
    by_count = time_by_count(spans)
    busy = sum(by_count.values())
    return sum(seconds for count, seconds in by_count.items() if count > 1) / busy if busy else 0.0


def time_by_count(spans: Iterable[Span]) -> dict[int, float]:
    """Seconds in which so many requests were live at once, from one on."""
    edges = sorted(edge for begin, end in spans if end > begin for edge in ((begin, 1), (end, -1)))
    seconds: dict[int, float] = {}
    count, since = 0, 0.0
    for at, change in edges:
        if count:
            seconds[count] = seconds.get(count, 0.0) + at - since
        count, since = count + change, at
    return seconds
