"""Sequences saved to host memory: what they hold, how much of the memory they take, which goes first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homeai.scheduling.tree import common_length

HEAD_TOKENS = 16  # who differs so early shares nothing that is worth bringing back: most are told apart by it


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """`number` names it between scheduler and runner."""

    number: int
    domain: str
    tokens: list[int]
    parked_by: str | None
    saved_at: float

    @property
    def length(self) -> int:
        return len(self.tokens)

    def num_common(self, tokens: list[int], *, may_cut: bool) -> int:
        """How much of it `tokens` begin with, and go on after. What is parked counts as a whole or not at all."""
        head = min(HEAD_TOKENS, self.length)
        if self.tokens[:head] != tokens[:head]:
            return 0
        count = common_length(self.tokens, tokens, 0, len(tokens) - 1)
        return count if count == self.length or (may_cut and not self.parked_by) else 0


class HostStore:
    """Bounded by bytes. `may_cut`: a saved sequence that is brought back may be cut to what is common, such as where
    two prompts part within a token; else it is found again only as a whole.
    """

    def __init__(self, max_bytes: int, bytes_per_token: int, *, may_cut: bool) -> None:
        self.max_bytes = max_bytes
        self._may_cut = may_cut
        self._bytes_per_token = bytes_per_token
        self._saved: dict[int, SavedSequence] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def num_bytes(self) -> int:
        return sum(saved.length for saved in self._saved.values()) * self._bytes_per_token

    def find(self, domain: str, tokens: list[int]) -> tuple[SavedSequence | None, int]:
        """The one that has most in common with `tokens`, and how much that is."""
        best, best_count = None, 0
        for saved in self._saved.values():
            if saved.domain == domain and (count := saved.num_common(tokens, may_cut=self._may_cut)) > best_count:
                best, best_count = saved, count
        return best, best_count

    def put(self, domain: str, tokens: list[int], *, parked_by: str | None, now: float) -> tuple[int | None, list[int]]:
        """The number of the new one (None: it does not fit) and of those that had to go for it."""
        size = len(tokens) * self._bytes_per_token
        if not self._bytes_per_token or size > self.max_bytes:
            return None, []
        gone: list[int] = []
        while self.num_bytes + size > self.max_bytes:
            oldest = min(self._saved.values(), key=lambda saved: (saved.parked_by is not None, saved.saved_at))
            if oldest.parked_by and not parked_by:
                return None, gone
            del self._saved[oldest.number]
            gone.append(oldest.number)
        self._last_number += 1
        self._saved[self._last_number] = SavedSequence(self._last_number, domain, tokens, parked_by, now)
        return self._last_number, gone

    def put_back(self, saved: SavedSequence, now: float) -> bool:
        """Somebody went on from a part of it: whether there is room for all of it still."""
        fits = self.num_bytes + saved.length * self._bytes_per_token <= self.max_bytes
        if fits:
            self._saved[saved.number] = replace(saved, saved_at=now)
        return fits

    def discard(self, number: int) -> SavedSequence | None:
        """It was brought back, or could not be saved."""
        return self._saved.pop(number, None)

    def parked_by(self, number: int) -> str | None:
        saved = self._saved.get(number)
        return saved.parked_by if saved else None

    def forget_parked(self, request_id: str) -> list[int]:
        """Drop what a parked request that ended had saved; the numbers dropped."""
        numbers = [saved.number for saved in self._saved.values() if saved.parked_by == request_id]
        for number in numbers:
            del self._saved[number]
        return numbers
