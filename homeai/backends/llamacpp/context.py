"""A llama.cpp context: its KV cells, its compute buffers, one `llama_decode` at a time.

Ids here are llama.cpp's own. It answers some misuse by ending the process or by corrupting a neighbour without
an error: what may be asked for is checked here where it needs no memory of the past, and in `sequences.py` where
it does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import llama_cpp as C
import numpy as np
import numpy.typing as npt

from homeai.backends.llamacpp.binding import KV_TYPES, Model, loaded

MAX_IDS: Final = 256  # LLAMA_MAX_SEQ
FLASH_ATTENTION: Final = {"auto": -1, "off": 0, "on": 1}
ALL: Final = -1
NO_ROOM: Final = 1  # a code of llama_decode
WHOLE: Final = 0  # flags of a saved state
WINDOW_ONLY: Final = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # of a sliding-window model: the windowed layers alone

State = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """num_ids: ids that a batch may name, 0 … num_ids - 1; the memory of a unified context knows all 256.
    num_outputs: rows of logits that one decode may ask for.
    is_partitioned: each id has num_kv_cells / num_ids cells of its own.
    """

    num_kv_cells: int
    num_ids: int
    num_outputs: int
    max_num_batched_tokens: int
    max_ubatch_tokens: int
    num_threads: int
    flash_attention: str = "on"
    swa_full: bool = True
    kv_type: str = "f16"
    is_partitioned: bool = False


class Batch:
    """The tokens of one `llama_decode`, in numpy arrays that llama.cpp reads in place."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self.num_outputs = 0
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._ids = np.zeros((capacity, 2), np.int32)  # a token may belong to two sequences
        self._num_ids = np.ones(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)
        base, stride = self._ids.ctypes.data, self._ids.strides[0]
        self._id_pointers = (base + stride * np.arange(capacity)).astype(np.uintp)
        self._struct = C.llama_batch(
            0,
            self._token.ctypes.data_as(ctypes.POINTER(C.llama_token)),
            None,
            self._pos.ctypes.data_as(ctypes.POINTER(C.llama_pos)),
            self._num_ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            self._id_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id))),
            self._wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def clear(self) -> None:
        self.num_tokens = self.num_outputs = 0

    def add(
        self,
        ids: Sequence[int],
        start: int,
        tokens: npt.NDArray[np.int32] | Sequence[int],
        *,
        num_outputs: int,
    ) -> None:
        """Append `tokens` at positions start… of one sequence, or of two that hold the same; logits are wanted for
        the last `num_outputs` of them."""
        first, end = self.num_tokens, self.num_tokens + len(tokens)
        assert end <= self.capacity, f"{end} tokens do not fit a batch of {self.capacity}"
        self._token[first:end] = tokens
        self._pos[first:end] = np.arange(start, start + len(tokens))
        self._ids[first:end, : len(ids)] = ids
        self._num_ids[first:end] = len(ids)
        self._wants_logits[first:end] = 0
        self._wants_logits[end - num_outputs : end] = 1
        self.num_tokens = end
        self.num_outputs += num_outputs

    def drop_last(self, count: int) -> None:
        """Of tokens whose logits were wanted."""
        self.num_tokens -= count
        self.num_outputs -= count

    @property
    def struct(self) -> C.llama_batch:
        self._struct.n_tokens = self.num_tokens
        return self._struct


class Context:
    """Raises `ModelLoadError` when llama.cpp cannot make one."""

    def __init__(self, model: Model, config: ContextConfig) -> None:
        assert 1 <= config.num_ids <= MAX_IDS, f"llama.cpp has {MAX_IDS} sequences, not {config.num_ids}"
        params = C.llama_context_default_params()
        params.n_ctx = config.num_kv_cells
        params.n_batch = config.max_num_batched_tokens
        params.n_ubatch = min(config.max_num_batched_tokens, config.max_ubatch_tokens)
        params.n_seq_max = config.num_ids
        # left at 0 the logits buffer is as long as the batch, 10x the memory; fewer than n_seq_max is an abort
        params.n_outputs_max = max(config.num_outputs, config.num_ids)
        params.n_threads = params.n_threads_batch = config.num_threads
        params.flash_attn_type = FLASH_ATTENTION[config.flash_attention]
        params.type_k = params.type_v = KV_TYPES[config.kv_type]
        params.swa_full = config.swa_full
        params.kv_unified = not config.is_partitioned
        params.no_perf = True
        self._context = loaded(
            f"cannot create a context of {config.num_kv_cells} tokens",
            lambda: C.llama_init_from_model(model.handle, params),
            no_reason="out of memory?",
        )
        self._memory = C.llama_get_memory(self._context)
        self._n_vocab = model.vocab.n_tokens
        self._num_memory_ids = config.num_ids if config.is_partitioned or model.is_recurrent else MAX_IDS
        self.num_outputs = int(params.n_outputs_max)
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.n_ctx = int(C.llama_n_ctx(self._context))
        self.n_ctx_seq = int(C.llama_n_ctx_seq(self._context))

    # ---- cells -----------------------------------------------------------------------------------

    def positions(self, seq: int) -> range:
        """Positions that `seq` holds; of a sliding-window model those in the windowed layers."""
        self._check(seq)
        first, last = C.llama_memory_seq_pos_min(self._memory, seq), C.llama_memory_seq_pos_max(self._memory, seq)
        return range(first, last + 1) if last >= 0 else range(0)

    def remove(self, seq: int, start: int = 0) -> None:
        """Forget positions from `start` on. (A range in the middle, or id -1, would hit others.)"""
        self._check(seq)
        C.llama_memory_seq_rm(self._memory, seq, start or ALL, ALL)

    def copy(self, source: int, target: int, end: int = ALL) -> None:
        """Give `target` what `source` holds before `end`. Unified: the same cells. Partitioned: all or nothing, and
        the bytes are moved when the next decode begins."""
        self._check(source)
        self._check(target)
        C.llama_memory_seq_cp(self._memory, source, target, ALL, end)

    def _check(self, seq: int) -> None:
        assert 0 <= seq < self._num_memory_ids, f"no sequence {seq}, there are {self._num_memory_ids}"

    # ---- saved states ----------------------------------------------------------------------------

    def state(self, seq: int, flags: int = WHOLE) -> State | None:
        """A copy in host memory, or None when llama.cpp cannot make one."""
        self._check(seq)
        data = np.empty(self.state_size(seq, flags), np.uint8)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        size = C.llama_state_seq_get_data_ext(self._context, pointer, data.size, seq, flags)
        return data if size == data.size > 0 else None

    def state_size(self, seq: int, flags: int = WHOLE) -> int:
        return int(C.llama_state_seq_get_size_ext(self._context, seq, flags))

    def set_state(self, seq: int, data: State, flags: int = WHOLE) -> bool:
        """Make `seq` what the saved one was. False: no room, or not a state; `seq` holds some part of it then."""
        self._check(seq)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return bool(C.llama_state_seq_set_data_ext(self._context, pointer, data.size, seq, flags) == data.size)

    # ---- the forward pass ------------------------------------------------------------------------

    def decode(self, batch: Batch) -> int:
        """llama_decode's code: 0 done; 1 no room, nothing changed; anything else is a broken context."""
        assert 0 < batch.num_tokens <= self.max_num_batched_tokens, f"{batch.num_tokens} tokens in a batch"
        assert batch.num_outputs <= self.num_outputs, f"{batch.num_outputs} rows of logits, not {self.num_outputs}"
        return int(C.llama_decode(self._context, batch.struct))

    def synchronize(self) -> None:
        """Wait until the device has computed what was asked of it."""
        C.llama_synchronize(self._context)

    def logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        """float32 [num_rows, n_vocab], rows in batch order; llama.cpp's own buffer, valid until the next decode."""
        pointer = C.llama_get_logits(self._context)
        assert pointer, "llama.cpp has no logits for this batch"
        return np.ctypeslib.as_array(pointer, shape=(num_rows, self._n_vocab))

    def close(self) -> None:
        if self._context:
            C.llama_free(self._context)
            self._context = None
