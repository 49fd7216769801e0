"""Whose line is run next, and how long to leave a batch alone after it could not be served. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeVar

FIRST_RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 60.0
MAX_TOLD_RETRY_S: Final = 600.0  # as the server says itself: a quota may be raised before midnight


class Candidate(Protocol):
    @property
    def source(self) -> str: ...


C = TypeVar("C", bound=Candidate)


def next_turn(ready: Iterable[C], served_at: Mapping[str, int]) -> C | None:
    """Of those with a line to run, oldest first: the first of the source whose last turn (a number) is longest ago.

    So a short batch of one source does not wait for the end of a long one of another.
    """
    return min(ready, key=lambda candidate: served_at.get(candidate.source, -1), default=None)


def retry_s(num_failures: int, told_s: float | None) -> float:
    """Until the next try, after so many in a row could not be served; `told_s`: Retry-After."""
    own_s = min(FIRST_RETRY_S * 2.0 ** min(num_failures - 1, 16), MAX_RETRY_S)
    return max(own_s, min(told_s or 0.0, MAX_TOLD_RETRY_S))
