"""KV ops on llama.cpp's sequences."""

from __future__ import annotations

from homeai.backends.llamacpp.sequences import SavedSequence, Sequences
from homeai.backends.shared import kv_ops


class KVOperations(kv_ops.KVOperations[SavedSequence]):
    def __init__(self, sequences: Sequences) -> None:
        super().__init__(sequences)
        self._sequences = sequences

    def save(self, seq_id: int, length: int) -> SavedSequence | None:
        return self._sequences.save(seq_id, length)

    def restore(self, seq_id: int, saved: SavedSequence) -> int | None:
        return saved.num_bytes if self._sequences.restore(seq_id, saved) else None
