"""Which places the sequences have: pure bookkeeping, no llama.cpp.

llama.cpp allocates a row of logits for every id that a batch may name, so few ids may be (a row is a megabyte
with 262,144 tokens). Sequences that are kept for reuse rest at others, and change places when they are needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from typing import NamedTuple


class Move(NamedTuple):
    seq_id: int
    source: int
    target: int


class Places:
    """Places 0 … num_active - 1 can take part in a batch, the rest cannot. One more than sequences is enough."""

    def __init__(self, num_seqs: int, num_active: int) -> None:
        self.num_places = num_seqs + (num_seqs > num_active)
        self._num_active = num_active
        self._place: dict[int, int] = {}  # of a sequence; whoever was in a batch last comes last
        self._free = list(range(self.num_places))  # a heap

    def of(self, seq_id: int) -> int | None:
        return self._place.get(seq_id)

    def take(self, seq_id: int) -> int:
        """A place for a sequence that has none; one that can take part in a batch if there is one."""
        assert seq_id not in self._place, f"sequence {seq_id} has a place"
        self._place[seq_id] = heapq.heappop(self._free)
        return self._place[seq_id]

    def release(self, seq_id: int) -> None:
        place = self._place.pop(seq_id, None)
        if place is not None:
            heapq.heappush(self._free, place)

    def activate(self, seq_ids: Collection[int]) -> Iterable[Move]:
        """Bring sequences where they can take part in a batch, all at once. The moves are to be done in order."""
        for seq_id in seq_ids:
            place = self._place.get(seq_id)
            if place is None or place >= self._num_active:
                if self._free[0] >= self._num_active:
                    yield self._rest(seq_ids)
                if place is None:
                    self.take(seq_id)
                else:
                    yield self._move(seq_id, heapq.heappop(self._free))
            self._place[seq_id] = self._place.pop(seq_id)

    def _rest(self, needed: Collection[int]) -> Move:
        """Of those that are not needed, the one that was in a batch longest ago makes room."""
        seq_id = next(s for s, place in self._place.items() if place < self._num_active and s not in needed)
        return self._move(seq_id, heapq.heappop(self._free))

    def _move(self, seq_id: int, target: int) -> Move:
        source = self._place[seq_id]
        self._place[seq_id] = target
        heapq.heappush(self._free, source)
        return Move(seq_id, source, target)
