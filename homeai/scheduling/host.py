"""Sequences saved to host memory: what they hold, how much of the memory they take, which goes first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homeai.scheduling.tree import common_length


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


class HostStore:
    """Bounded by bytes: what was used longest ago gives way, what parked requests left after all else."""

    def __init__(self, max_bytes: int, bytes_per_token: int) -> None:
        self.max_bytes = max_bytes
        self._bytes_per_token = bytes_per_token
        self._saved: dict[int, SavedSequence] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def num_bytes(self) -> int:
        return sum(saved.length for saved in self._saved.values()) * self._bytes_per_token

    def find(
        self, domain: str, tokens: list[int], *, longer_than: int, min_cut: int | None
    ) -> tuple[SavedSequence, int] | None:
        """The one that begins with most of `tokens` but the last, and how many that are: with all that it holds, or at
        least with `min_cut` tokens. None where no more than `longer_than` are found."""
        best, best_length, limit = None, longer_than, len(tokens) - 1
        for saved in self._saved.values():
            if saved.domain != domain or not best_length < min(saved.length, limit):
                continue
            if saved.tokens[best_length] != tokens[best_length]:  # most differ from the best one there, if not before
                continue
            length = common_length(saved.tokens, tokens, 0, limit)
            is_enough = length == saved.length or (min_cut is not None and length >= min_cut)
            if length > best_length and is_enough:
                best, best_length = saved, length
        return None if best is None else (best, best_length)

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

    def discard(self, number: int) -> SavedSequence | None:
        """It was brought back, or could not be saved."""
        return self._saved.pop(number, None)

    def put_back(self, saved: SavedSequence, now: float) -> bool:
        """It was discarded, and may still be wanted: it stays if there is room for it."""
        if self.num_bytes + saved.length * self._bytes_per_token > self.max_bytes:
            return False
        self._saved[saved.number] = replace(saved, saved_at=now)
        return True

    def parked_by(self, number: int) -> str | None:
        saved = self._saved.get(number)
        return saved.parked_by if saved else None

    def forget_parked(self, request_id: str) -> list[int]:
        """Drop what a parked request that ended had saved; the numbers dropped."""
        numbers = [saved.number for saved in self._saved.values() if saved.parked_by == request_id]
        for number in numbers:
            del self._saved[number]
        return numbers
