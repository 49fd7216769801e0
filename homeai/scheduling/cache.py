"""The KV cache as the scheduler counts it: sequences to hand out, cells that are taken.

Every token in the cache takes one cell of the one pool that all sequences share. The runner holds exactly what
is counted here, and until its next step what was closed since the last one.
"""

from __future__ import annotations

import heapq

from homeai.scheduling.plan import KVOp, KVOpKind


class KVCache:
    def __init__(self, num_cells: int, num_seqs: int) -> None:
        self.num_cells = num_cells
        self.num_used = 0
        self._free_seqs = list(range(num_seqs))  # a heap: low ids first, so that what is live sits low
        self._length: dict[int, int] = {}
        self._pending_ops: list[KVOp] = []

    @property
    def num_free(self) -> int:
        return self.num_cells - self.num_used

    @property
    def has_pending_ops(self) -> bool:
        return bool(self._pending_ops)

    def open_sequence(self) -> int | None:
        """An empty sequence, or None when all are taken."""
        if not self._free_seqs:
            return None
        seq_id = heapq.heappop(self._free_seqs)
        self._length[seq_id] = 0
        return seq_id

    def close_sequence(self, seq_id: int) -> None:
        """Its cells are free from the next step on."""
        self.num_used -= self._length.pop(seq_id)
        heapq.heappush(self._free_seqs, seq_id)
        self._pending_ops.append(KVOp(KVOpKind.DROP, seq_id))

    def take(self, seq_id: int, count: int) -> None:
        assert count <= self.num_free, f"{count} cells wanted, {self.num_free} free"
        self._length[seq_id] += count
        self.num_used += count

    def give_back(self, seq_id: int, count: int) -> None:
        """Planned, but not computed."""
        self._length[seq_id] -= count
        self.num_used -= count

    def take_pending_ops(self) -> list[KVOp]:
        ops, self._pending_ops = self._pending_ops, []
        return ops
