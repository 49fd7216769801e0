"""Whom to park: for room in the cache, or for somebody whose first token is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from homeai.request import Request

MIN_WEIGHT_RATIO = 4.0  # a chat is not parked for a spoken question: somebody reads along
MIN_STAY_S = 2.0  # in the batch, before it may be parked again for somebody else's hurry
MONOPOLY_WAIT_S = 2.0


def choose_victim(running: Sequence[Request], weight: Callable[[str], float]) -> Request:
    """Of the lowest class the one that is cheapest to bring back; of equals the latest.

    `running` is in order of admission, which tells apart what arrived at one instant.
    """
    return min(reversed(running), key=lambda r: (weight(r.fairness_class), r.num_computed_tokens, -r.arrival_at))


def eligible_for_hurry(
    running: Iterable[Request], hurried: Request, weight: Callable[[str], float], now: float
) -> list[Request]:
    """Those of a much lower class than `hurried`. Who was parked before has a while to get on with it first."""
    limit = weight(hurried.fairness_class) / MIN_WEIGHT_RATIO
    return [
        r
        for r in running
        if weight(r.fairness_class) <= limit and (not r.num_preemptions or now - r.joined_at >= MIN_STAY_S)
    ]


def fewest_victims(
    eligible: Iterable[Request], missing: int, frees: Callable[[Request], int], weight: Callable[[str], float]
) -> list[Request]:
    """In the order of `choose_victim`, until they have freed what is missing; nobody if all would not be enough."""
    left, victims = list(eligible), []
    while missing > 0 and left:
        victim = choose_victim(left, weight)
        left.remove(victim)
        victims.append(victim)
        missing -= frees(victim)
    return victims if missing <= 0 else []


def victim_of_monopoly(
    running: Sequence[Request], newcomer: Request, weight: Callable[[str], float], now: float
) -> Request | None:
    """All seats are one other source's: one of them gives way, of the lowest class, a prompt before a stream.

    `newcomer` is next in line: a source that was served less than it may hold all seats meanwhile. And not at once
    for a newcomer of a lower class: a seat may become free by itself.
    """
    if {r.source for r in running} - {running[0].source} or newcomer.source == running[0].source:
        return None
    victim = min(reversed(running), key=lambda r: (weight(r.fairness_class), r.num_output_tokens > 0, -r.arrival_at))
    is_lower = weight(newcomer.fairness_class) < weight(victim.fairness_class)
    return None if is_lower and now - newcomer.arrival_at < MONOPOLY_WAIT_S else victim
