"""Whom to park when the KV cache is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homeai.request import Request


def choose_victim(running: Sequence[Request], weight: Callable[[str], float]) -> Request:
    """Of the lowest class the one that is cheapest to bring back; of equals the latest.

    `running` is in order of admission, which tells apart what arrived at one instant.
    """
    return min(reversed(running), key=lambda r: (weight(r.fairness_class), r.num_computed_tokens, -r.arrival_at))
