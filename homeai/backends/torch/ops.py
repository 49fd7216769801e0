"""KV ops on block tables, and the sequences saved in host memory."""

from __future__ import annotations

from dataclasses import dataclass

from homeai.backends.shared import kv_ops
from homeai.backends.torch.blocks import BLOCK_TOKENS, Key, num_blocks_for
from homeai.backends.torch.kv import PagedKV, SavedBlocks
from homeai.backends.torch.tables import HOLE, BlockTables


@dataclass(frozen=True, slots=True, eq=False)
class SavedSequence:
    """`rows`: per group and block of the sequence, where it lies in `parts`; None for what a window had left."""

    length: int
    keys: tuple[Key, ...]
    rows: tuple[tuple[int | None, ...], ...]
    parts: tuple[SavedBlocks, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


class KVOperations(kv_ops.KVOperations[SavedSequence]):
    def __init__(self, tables: BlockTables, kv: PagedKV) -> None:
        super().__init__(tables)
        self._tables = tables
        self._kv = kv

    def save(self, seq_id: int, length: int) -> SavedSequence:
        held = self._tables.length(seq_id)
        assert 0 < length <= held, f"sequence {seq_id} holds {held} tokens, not {length}"
        rows: list[tuple[int | None, ...]] = []
        parts: list[SavedBlocks] = []
        for group in range(len(self._tables.groups)):
            blocks = self._tables.blocks(seq_id, group)[: num_blocks_for(length)]
            kept = [block for block in blocks if block != HOLE]
            first = len(blocks) - len(kept)  # holes come before all others
            rows.append((None,) * first + tuple(range(len(kept))))
            parts.append(self._kv.save(group, kept))
        keys = tuple(self._tables.keys(seq_id)[: length // BLOCK_TOKENS])
        return SavedSequence(length, keys, tuple(rows), tuple(parts))

    def restore(self, seq_id: int, saved: SavedSequence) -> int | None:
        present = [[row is not None for row in rows] for rows in saved.rows]
        copies = self._tables.place(seq_id, saved.length, saved.keys, present)
        if copies is None:
            return None
        num_bytes = 0
        for group, (rows, part) in enumerate(zip(saved.rows, saved.parts, strict=True)):
            own = [copy for copy in copies if copy.group == group]
            if own:
                picked = [row for copy in own if (row := rows[copy.source]) is not None]
                num_bytes += self._kv.restore(group, part, picked, [copy.target for copy in own])
        return num_bytes
