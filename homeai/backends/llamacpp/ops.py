"""KV ops carried out: sequences on the device, and those saved in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from homeai.backends.llamacpp.sequences import SavedSequence, Sequences
from homeai.scheduling.plan import KVOp, KVOpKind, KVOpResult

OK = KVOpResult()
FAILED = KVOpResult(ok=False)


class KVOperations:
    """Owns the saved sequences, by the scheduler's numbers."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences
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
                self._sequences.drop(op.seq_id)
                return OK
            case KVOpKind.TRUNCATE:
                is_possible = op.seq_id not in failed
                return OK if is_possible and self._sequences.truncate(op.seq_id, op.length) else FAILED
            case KVOpKind.SHARE:
                is_possible = op.other not in failed
                return OK if is_possible and self._sequences.share(op.other, op.seq_id, op.length) else FAILED
            case KVOpKind.SAVE:
                return self._save(op) if op.seq_id not in failed else FAILED
            case KVOpKind.RESTORE:
                return self._restore(op)
            case KVOpKind.FORGET:
                self._saved.pop(op.other, None)
                return OK

    def _save(self, op: KVOp) -> KVOpResult:
        assert op.other not in self._saved, f"a saved sequence has the number {op.other} already"
        saved = self._sequences.save(op.seq_id, op.length)
        if saved is None:
            return FAILED
        self._saved[op.other] = saved
        return KVOpResult(num_bytes=saved.num_bytes)

    def _restore(self, op: KVOp) -> KVOpResult:
        saved = self._saved.get(op.other)
        if saved is None or not self._sequences.restore(op.seq_id, saved):
            return FAILED
        if not self._sequences.truncate(op.seq_id, op.length):
            return FAILED
        return KVOpResult(num_bytes=saved.num_bytes)
