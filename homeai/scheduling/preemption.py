"""Whom to park: for room in the cache, or for somebody whose first token is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from homeai.request import Request

MIN_WEIGHT_RATIO = 4.0  # a chat is not parked for a spoken question: somebody reads along
MIN_STAY_S = 2.0  # in the batch, before it may be parked for somebody else's hurry


def choose_victim(running: Sequence[Request], weight: Callable[[str], float]) -> Request:
    """Of the lowest class the one that is cheapest to bring back; of equals the latest.

    `running` is in order of admission, which tells apart what arrived at one instant.
    """
    return min(reversed(running), key=lambda r: (weight(r.fairness_class), r.num_computed_tokens, -r.arrival_at))


def victim_of_hurry(
    running: Iterable[Request], hurried: Request, weight: Callable[[str], float], now: float
) -> Request | None:
    """Somebody of a much lower class than `hurried`, who has had a turn since the last time."""
    limit = weight(hurried.fairness_class) / MIN_WEIGHT_RATIO
    lower = [r for r in running if weight(r.fairness_class) <= limit and now - r.joined_at >= MIN_STAY_S]
    return choose_victim(lower, weight) if lower else None


def victim_of_monopoly(running: Sequence[Request], newcomer: Request, max_num_seqs: int) -> Request | None:
    """One source holds every seat while another one waits: its latest request gives way."""
    if max_num_seqs < 2 or len(running) < max_num_seqs:
        return None
    (source, count), *_ = Counter(r.source for r in running).most_common(1)
    return running[-1] if count == len(running) and source != newcomer.source else None
