"""Whom to park when the KV cache is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from homeai.request import Request


def choose_victim(running: Iterable[Request], weight: Callable[[str], float]) -> Request:
    """Of the lowest class the one that is cheapest to bring back; of equals the latest."""
    return min(running, key=lambda r: (weight(r.fairness_class), r.num_computed_tokens, -r.arrival_at))
