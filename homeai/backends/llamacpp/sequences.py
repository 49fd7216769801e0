"""What every sequence holds: our own mirror of llama.cpp's cells, asserted before each call.

llama.cpp corrupts silently where positions have a hole or come twice, where a sequence is copied onto one that is
not empty, and where a sliding-window model lost what lies outside a window: the cells that one sequence alone owns
are used for others as soon as its window has left them. So in a sliding-window model every sequence has a *twin*,
a second id on the same cells, and all of it stays whole; and nobody shares or cuts a sequence whose window at that
point is not whole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.context import MAX_IDS, NO_ROOM, WINDOW_ONLY, Batch, Context, State
from homeai.backends.llamacpp.places import Places
from homeai.errors import ModelLoadError

SCRATCH: Final = 0  # an id of our own: part of a sequence is saved and restored through it
NUM_ID_BYTES: Final = 8  # of a state, before its cells: magic, sequence id
NUM_CELLS: Final = struct.Struct("<II")  # number of streams, number of cells


@dataclass(frozen=True, slots=True)
class Layout:
    """How our sequences lie in llama.cpp's ids.

    num_seqs: ours. num_active: of these, how many a batch may name. n_swa: the model's window, 0 without one.
    can_share: one sequence's cells can be another's, and a tail can be cut off.
    """

    num_seqs: int
    num_active: int
    n_swa: int = 0
    can_share: bool = True
    is_partitioned: bool = False

    @classmethod
    def of(cls, model: Model, *, max_num_seqs: int, num_cached_seqs: int, swa_full: bool, kv_layout: str) -> Layout:
        """As many kept sequences as there are ids for, and none where none can be shared. Raises `ModelLoadError`."""
        can_share = not model.is_recurrent and (swa_full or model.n_swa == 0)
        layout = cls(max_num_seqs, max_num_seqs, model.n_swa, can_share, kv_layout == "partitioned")
        if layout.num_ids > MAX_IDS:
            raise ModelLoadError(f"this model needs {layout.num_ids} ids for {max_num_seqs} sequences, not {MAX_IDS}")
        if not layout.has_scratch:
            return layout
        room = (MAX_IDS - 1) // layout.num_ids_each - 1  # one place more, to move through
        return replace(layout, num_seqs=max(max_num_seqs, min(max_num_seqs + num_cached_seqs, room)))

    @property
    def has_scratch(self) -> bool:
        return self.can_share and not self.is_partitioned

    @property
    def num_ids_each(self) -> int:
        return 2 if self.has_scratch and self.n_swa else 1

    @property
    def num_ids(self) -> int:
        """Ids that a batch may name."""
        return int(self.has_scratch) + self.num_active * self.num_ids_each

    def ids(self, place: int) -> range:
        first = int(self.has_scratch) + place * self.num_ids_each
        return range(first, first + self.num_ids_each)


@dataclass(frozen=True, slots=True, eq=False)
class SavedSequence:
    """The whole cells and the last window; then of a sliding-window model the windows before it, backwards."""

    length: int
    parts: tuple[State, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.size for part in self.parts)


class Sequences:
    """The only one that changes the context's cells. Sequences are 0 … num_seqs - 1."""

    def __init__(self, context: Context, layout: Layout) -> None:
        self.layout = layout
        self._context = context
        self._lengths = [0] * layout.num_seqs
        self._places = Places(layout.num_seqs, layout.num_active)
        self._in_copy: set[int] = set()  # partitioned: ids that the next decode begins with copying from or to

    def length(self, seq_id: int) -> int:
        """Tokens that `seq_id` holds, by our own count."""
        assert 0 <= seq_id < len(self._lengths), f"no sequence {seq_id}"
        return self._lengths[seq_id]

    def positions(self, seq_id: int) -> range:
        """What llama.cpp holds of it: range(length), but after `restore` of a window only."""
        ids = self._ids(seq_id)
        return self._context.positions(ids[0]) if ids else range(0)

    # ---- a sequence as a whole -------------------------------------------------------------------

    def drop(self, seq_id: int) -> None:
        """Forget all of it."""
        self._check(seq_id)
        for i in self._ids(seq_id):
            self._context.remove(i)
        self._lengths[seq_id] = 0
        self._places.release(seq_id)

    def truncate(self, seq_id: int, length: int) -> bool:
        """Keep the first `length` tokens. False: that cannot be done; it is empty now."""
        held = self.length(seq_id)
        assert 0 <= length <= held, f"sequence {seq_id} holds {held} tokens, not {length}"
        if length == held:
            return True
        if length == 0 or not self._is_whole_at(seq_id, length):
            self.drop(seq_id)
            return length == 0
        for i in self._ids(seq_id):
            self._context.remove(i, length)
        self._lengths[seq_id] = length
        return True

    def share(self, source: int, target: int, length: int) -> bool:
        """The empty `target` begins with the first `length` tokens of `source`. False: it cannot; it is empty still."""
        held = self.length(source)
        assert 0 < length <= held, f"sequence {source} holds {held} tokens, not {length}"
        assert self.layout.can_share, "this model's sequences cannot be shared"
        ids = self._open(target)
        if not self._is_whole_at(source, length):
            self.drop(target)
            return False
        origin = self._ids(source)[0]
        if self.layout.is_partitioned:
            self._context.copy(origin, ids[0])  # a part of it would be an abort
            self._in_copy |= {origin, ids[0]}
            if length < held:
                self._context.remove(ids[0], length)
        else:
            for i in ids:
                self._context.copy(origin, i, length)
        self._lengths[target] = length
        return True

    def _is_whole_at(self, seq_id: int, length: int) -> bool:
        """All that the token at position `length` would look at is there."""
        if self.layout.n_swa == 0:
            return self.layout.can_share
        first = self.positions(seq_id).start
        return first == 0 or first <= length - self.layout.n_swa

    # ---- host memory -----------------------------------------------------------------------------

    def save(self, seq_id: int, length: int) -> SavedSequence | None:
        """A copy of the first `length` tokens, or None where it cannot be made."""
        held = self.length(seq_id)
        assert 0 < length <= held, f"sequence {seq_id} holds {held} tokens, not {length}"
        if self.layout.has_scratch:
            return self._save_windows(seq_id, length) if self._is_whole_at(seq_id, length) else None
        llama_id = self._ids(seq_id)[0]
        state = self._context.state(llama_id) if length == held and llama_id not in self._in_copy else None
        return SavedSequence(length, (state,)) if state is not None else None

    def _save_windows(self, seq_id: int, length: int) -> SavedSequence | None:
        """llama.cpp leaves out what lies outside the last token's window: cut that off, and ask again."""
        first = self.positions(seq_id).start
        self._context.copy(self._ids(seq_id)[0], SCRATCH, length)
        try:
            state = self._context.state(SCRATCH)
            if state is None:
                return None
            parts, end = [state], first
            if self.layout.n_swa:
                end = length - _num_cells(state, self._context.state_size(SCRATCH, WINDOW_ONLY))
            while end > first:
                self._context.remove(SCRATCH, end)
                state = self._context.state(SCRATCH, WINDOW_ONLY)
                num_cells = _num_cells(state, state.size) if state is not None else 0
                if state is None or not num_cells:
                    return None
                parts.append(state)
                end -= num_cells
            return SavedSequence(length, tuple(parts))
        finally:
            self._context.remove(SCRATCH)

    def restore(self, seq_id: int, saved: SavedSequence) -> bool:
        """The empty `seq_id` becomes what was saved, in cells of its own. False: no room; it is empty still."""
        ids = self._open(seq_id)
        whole, *windows = saved.parts
        is_restored = ids[0] not in self._in_copy and self._context.set_state(ids[0], whole)
        for i in ids[1:]:
            self._context.copy(ids[0], i)
        for window in windows:
            is_restored = is_restored and self._context.set_state(SCRATCH, window, WINDOW_ONLY)
            for i in ids:
                self._context.copy(SCRATCH, i)
            self._context.remove(SCRATCH)
        if not is_restored:  # llama.cpp may have left some layers' cells
            self.drop(seq_id)
            return False
        self._lengths[seq_id] = saved.length
        assert self.positions(seq_id).stop == saved.length, f"{self.positions(seq_id)} is not {saved.length} tokens"
        return True

    # ---- the forward pass ------------------------------------------------------------------------

    def activate(self, seq_ids: Sequence[int]) -> list[range]:
        """The ids that a batch names these sequences by; valid until the next change."""
        for move in self._places.activate(seq_ids):
            for source, target in zip(self.layout.ids(move.source), self.layout.ids(move.target), strict=True):
                self._context.copy(source, target)
            for source in self.layout.ids(move.source):
                self._context.remove(source)
        return [self._ids(seq_id) for seq_id in seq_ids]

    def decode(self, batch: Batch, added: Sequence[tuple[int, int]], num_rows: int = 0) -> int:
        """Compute the batch. `added`: (sequence, tokens) per piece of it. Returns llama_decode's code.

        With fewer tokens than `num_rows` others are computed behind them, if there is room, and forgotten at once.
        """
        num_padded = num_rows - batch.num_tokens if self.layout.has_scratch else 0
        if num_padded > 0:
            batch.add((SCRATCH,), 0, np.zeros(num_padded, np.int32), num_outputs=num_padded)
        code = self._context.decode(batch)
        if num_padded > 0:
            self._context.remove(SCRATCH)
            batch.drop_last(num_padded)
            if code == NO_ROOM:
                code = self._context.decode(batch)
        if code == 0:
            for seq_id, count in added:
                self._lengths[seq_id] += count
        self._in_copy.clear()
        return code

    # ---- places ----------------------------------------------------------------------------------

    def _check(self, seq_id: int) -> None:
        assert 0 <= seq_id < len(self._lengths), f"no sequence {seq_id}"

    def _ids(self, seq_id: int) -> range:
        """Empty while the sequence has no place."""
        place = self._places.of(seq_id)
        return self.layout.ids(place) if place is not None else range(0)

    def _open(self, seq_id: int) -> range:
        held = self.length(seq_id)
        assert held == 0, f"sequence {seq_id} holds {held} tokens and should be empty"
        place = self._places.of(seq_id)
        return self.layout.ids(self._places.take(seq_id) if place is None else place)


def _num_cells(state: State, window_size: int) -> int:
    """Cells of the windowed layers in a state, whose last `window_size` bytes but the ids are about these."""
    _, num_cells = NUM_CELLS.unpack_from(state.data, state.size - window_size + NUM_ID_BYTES)
    return int(num_cells)
