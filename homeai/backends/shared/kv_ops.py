"""KV ops carried out in order, and what becomes of those behind one that failed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from homeai.scheduling.plan import KVOp, KVOpKind, KVOpResult

OK = KVOpResult()
FAILED = KVOpResult(ok=False)


class Sequences(Protocol):
    """On the device, by id. False: it cannot be done, and the sequence is what it was, or empty."""

    def drop(self, seq_id: int) -> None: ...

    def truncate(self, seq_id: int, length: int) -> bool: ...

    def share(self, source: int, target: int, length: int) -> bool: ...


class Saved(Protocol):
    """A sequence in host memory."""

    @property
    def num_bytes(self) -> int: ...


S = TypeVar("S", bound=Saved)


class KVOperations(ABC, Generic[S]):
    """Owns the saved sequences, by the scheduler's numbers."""

    def __init__(self, sequences: Sequences) -> None:
        self._on_device = sequences
        self._saved: dict[int, S] = {}

    @abstractmethod
    def save(self, seq_id: int, length: int) -> S | None:
        """The first `length` tokens, to host memory; None if that cannot be."""

    @abstractmethod
    def restore(self, seq_id: int, saved: S) -> int | None:
        """Back into an empty sequence; how many bytes moved, None if there is no room."""

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
                self._on_device.drop(op.seq_id)
                return OK
            case KVOpKind.TRUNCATE:
                is_possible = op.seq_id not in failed
                return OK if is_possible and self._on_device.truncate(op.seq_id, op.length) else FAILED
            case KVOpKind.SHARE:
                is_possible = op.other not in failed
                return OK if is_possible and self._on_device.share(op.other, op.seq_id, op.length) else FAILED
            case KVOpKind.SAVE:
                return self._save(op) if op.seq_id not in failed else FAILED
            case KVOpKind.RESTORE:
                return self._restore(op)
            case KVOpKind.FORGET:
                self._saved.pop(op.other, None)
                return OK

    def _save(self, op: KVOp) -> KVOpResult:
        assert op.other not in self._saved, f"a saved sequence has the number {op.other} already"
        saved = self.save(op.seq_id, op.length)
        if saved is None:
            return FAILED
        self._saved[op.other] = saved
        return KVOpResult(num_bytes=saved.num_bytes)

    def _restore(self, op: KVOp) -> KVOpResult:
        saved = self._saved.get(op.other)
        num_bytes = self.restore(op.seq_id, saved) if saved is not None else None
        if num_bytes is None or not self._on_device.truncate(op.seq_id, op.length):
            return FAILED
        return KVOpResult(num_bytes=num_bytes)
