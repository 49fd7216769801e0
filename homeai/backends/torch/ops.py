"""KV ops carried out: on the block tables, and on the sequences saved in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homeai.backends.torch.blocks import BLOCK_TOKENS, Key, num_blocks_for
from homeai.backends.torch.kv import PagedKV, SavedBlocks
from homeai.backends.torch.tables import HOLE, BlockTables
from homeai.scheduling.plan import KVOp, KVOpKind, KVOpResult

OK = KVOpResult()
FAILED = KVOpResult(ok=False)


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


class KVOperations:
    """Owns the saved sequences, by the scheduler's numbers."""

    def __init__(self, tables: BlockTables, kv: PagedKV) -> None:
        self._tables = tables
        self._kv = kv
        self._saved: dict[int, SavedSequence] = {}

    @property
    def num_saved_bytes(self) -> int:
        return sum(saved.num_bytes for saved in self._saved.values())

    def execute(self, ops: Sequence[KVOp]) -> tuple[list[KVOpResult], set[int]]:
        """The results in order, and the sequences whose last op failed: what is planned for these cannot run."""
        results: list[KVOpResult] = []
        failed: set[int] = set()
        for op in ops:
            results.append(self._execute(op, failed))
            if op.kind not in (KVOpKind.SAVE, KVOpKind.FORGET):
                (failed.discard if results[-1].ok else failed.add)(op.seq_id)
        return results, failed

    def _execute(self, op: KVOp, failed: set[int]) -> KVOpResult:
        match op.kind:
            case KVOpKind.DROP:
                self._tables.drop(op.seq_id)
                return OK
            case KVOpKind.TRUNCATE:
                is_possible = op.seq_id not in failed
                return OK if is_possible and self._tables.truncate(op.seq_id, op.length) else FAILED
            case KVOpKind.SHARE:
                is_possible = op.other not in failed
                return OK if is_possible and self._tables.share(op.other, op.seq_id, op.length) else FAILED
            case KVOpKind.SAVE:
                return self._save(op) if op.seq_id not in failed else FAILED
            case KVOpKind.RESTORE:
                return self._restore(op)
            case KVOpKind.FORGET:
                self._saved.pop(op.other, None)
                return OK

    def _save(self, op: KVOp) -> KVOpResult:
        assert op.other not in self._saved, f"a saved sequence has the number {op.other} already"
        held = self._tables.length(op.seq_id)
        assert 0 < op.length <= held, f"sequence {op.seq_id} holds {held} tokens, not {op.length}"
        rows: list[tuple[int | None, ...]] = []
        parts: list[SavedBlocks] = []
        for group in range(len(self._tables.groups)):
            blocks = self._tables.blocks(op.seq_id, group)[: num_blocks_for(op.length)]
            kept = [block for block in blocks if block != HOLE]
            first = len(blocks) - len(kept)  # holes come before all others
            rows.append((None,) * first + tuple(range(len(kept))))
            parts.append(self._kv.save(group, kept))
        keys = tuple(self._tables.keys(op.seq_id)[: op.length // BLOCK_TOKENS])
        saved = self._saved[op.other] = SavedSequence(op.length, keys, tuple(rows), tuple(parts))
        return KVOpResult(num_bytes=saved.num_bytes)

    def _restore(self, op: KVOp) -> KVOpResult:
        saved = self._saved.get(op.other)
        if saved is None:
            return FAILED
        present = [[row is not None for row in rows] for rows in saved.rows]
        copies = self._tables.place(op.seq_id, saved.length, saved.keys, present)
        if copies is None:
            return FAILED
        num_bytes = 0
        for group, (rows, part) in enumerate(zip(saved.rows, saved.parts, strict=True)):
            own = [copy for copy in copies if copy.group == group]
            if own:
                picked = [row for copy in own if (row := rows[copy.source]) is not None]
                num_bytes += self._kv.restore(group, part, picked, [copy.target for copy in own])
        if not self._tables.truncate(op.seq_id, op.length):
            return FAILED
        return KVOpResult(num_bytes=num_bytes)
