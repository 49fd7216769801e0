"""A thin, owning layer over llama.cpp's C API; the only file that touches ctypes.

Each class frees what it allocated, in `close()`. Order matters: batch, context, model, backend; callbacks
outlive them all. llama.cpp answers some misuse by ending the process or by corrupting a neighbour without
an error, so `Context` mirrors what every sequence holds and asserts before each call.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import llama_cpp as C
import numpy as np
import numpy.typing as npt

from homeai.errors import ModelLoadError

T = TypeVar("T")

log = logging.getLogger("llama.cpp")

MAX_SEQUENCES: Final = 256  # LLAMA_MAX_SEQ
FLASH_ATTENTION: Final = {"auto": -1, "off": 0, "on": 1}
KV_TYPES: Final = {"f16": C.GGML_TYPE_F16, "q8_0": C.GGML_TYPE_Q8_0, "q4_0": C.GGML_TYPE_Q4_0}
KV_TYPE_BYTES: Final = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}

# ---- llama.cpp's log, routed by level --------------------------------------------------------------

# ggml_log_level; its INFO is hundreds of lines per load
_LEVELS: Final = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_load_errors: list[str] | None = None  # while something loads: its errors, which the exception then tells
_partial: list[str] = []
_partial_level = logging.DEBUG


@C.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user_data: object) -> None:
    global _partial_level
    if level != 5:  # 5 continues the previous line
        _partial_level = _LEVELS.get(level, logging.DEBUG)
    if _partial_level < logging.WARNING and not log.isEnabledFor(_partial_level):
        return
    _partial.append(text.decode("utf-8", "replace"))
    if not text.endswith(b"\n"):
        return
    line = "".join(_partial).strip()
    _partial.clear()
    if _load_errors is not None and _partial_level >= logging.ERROR:
        _load_errors.append(line)
    elif line.strip("."):
        log.log(_partial_level, "%s", line)


def _loaded(what: str, load: Callable[[], T], no_reason: str) -> T:
    """The handle that `load` returns. When it is null, llama.cpp's log tells why: the error says it, and only once."""
    global _load_errors
    errors: list[str] = []
    _load_errors = errors
    try:
        handle = load()
    finally:
        _load_errors = None
    if not handle:
        raise ModelLoadError(f"{what}: {'; '.join(errors) or no_reason}")
    for line in errors:
        log.error("%s", line)
    return handle


_backend_ready = False


def _init_backend() -> None:
    global _backend_ready
    if not _backend_ready:
        C.llama_log_set(_on_log, ctypes.c_void_p(0))
        C.llama_backend_init()
        _backend_ready = True


def supports_gpu() -> bool:
    """True when this build can offload and sees a device to offload to."""
    _init_backend()
    return bool(C.llama_supports_gpu_offload())


# ---- model and vocabulary --------------------------------------------------------------------------


class Model:
    """Weights (or, with `vocab_only`, just vocabulary and metadata) of one GGUF file.

    Raises `ModelLoadError`, with llama.cpp's own reason, for anything that is not a loadable GGUF.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_only: bool = False,
        n_gpu_layers: int = 0,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        _check_is_gguf(path)
        _init_backend()
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers

        def progress(fraction: float, _user_data: object) -> bool:
            if on_progress is not None:
                on_progress(fraction)
            return True

        self._progress = C.llama_progress_callback(progress)  # must outlive the load
        params.progress_callback = self._progress
        self._model = _loaded(
            f"cannot load {path.name}",
            lambda: C.llama_model_load_from_file(str(path).encode(), params),
            no_reason="llama.cpp gave no reason",
        )
        self.path = path
        self.vocab = Vocab(C.llama_model_get_vocab(self._model))

    @property
    def handle(self) -> int:
        assert self._model, "the model was closed"
        return int(self._model)

    @property
    def n_ctx_train(self) -> int:
        return int(C.llama_model_n_ctx_train(self.handle))

    @property
    def size_bytes(self) -> int:
        return int(C.llama_model_size(self.handle))

    def kv_bytes_per_token(self, kv_type: str) -> int:
        """Keys and values of one token over all layers, with `swa_full`. An estimate from the metadata."""
        arch = self.meta("general.architecture") or ""
        num_heads = int(C.llama_model_n_head_kv(self.handle))
        head_size = int(C.llama_model_n_embd(self.handle)) // max(1, int(C.llama_model_n_head(self.handle)))
        key_size = int(self.meta(f"{arch}.attention.key_length") or head_size)
        value_size = int(self.meta(f"{arch}.attention.value_length") or head_size)
        num_values = int(C.llama_model_n_layer(self.handle)) * num_heads * (key_size + value_size)
        return int(num_values * KV_TYPE_BYTES[kv_type])

    @property
    def chat_template(self) -> str | None:
        text = C.llama_model_chat_template(self.handle, None)
        return text.decode("utf-8", "replace") if text else None

    def meta(self, key: str) -> str | None:
        """A metadata value of the GGUF as text, e.g. `general.name`."""
        buffer = ctypes.create_string_buffer(4096)
        length = C.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def close(self) -> None:
        if self._model:
            C.llama_model_free(self._model)
            self._model = None


def _check_is_gguf(path: Path) -> None:
    """llama.cpp aborts or is silent on some of these."""
    if not path.exists():
        raise ModelLoadError(f"model file not found: {path}")
    if not path.is_file():
        raise ModelLoadError(f"model path is not a file: {path}")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelLoadError(f"not a GGUF file: {path} starts with {magic!r}, not b'GGUF'")


class Vocab:
    """Text ↔ token ids. Valid as long as its model; may be used from several threads."""

    def __init__(self, handle: int) -> None:
        self._vocab = handle
        self.n_tokens = int(C.llama_vocab_n_tokens(handle))
        self.bos = int(C.llama_vocab_bos(handle))
        self.eos = int(C.llama_vocab_eos(handle))
        self.add_bos = bool(C.llama_vocab_get_add_bos(handle))

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """`parse_special` turns "<|im_end|>" into its control token: only for text that we wrote."""
        size = len(text) + 8  # a token is at least a byte, plus begin and end tokens
        tokens = (C.llama_token * size)()
        count = C.llama_tokenize(self._vocab, text, len(text), tokens, size, add_special, parse_special)
        assert count >= 0, f"llama_tokenize needs {-count} tokens for {len(text)} bytes"
        return list(tokens[:count])

    def piece(self, token_id: int, *, special: bool) -> bytes:
        """The bytes a token stands for; control tokens are empty unless `special`."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = C.llama_token_to_piece(self._vocab, token_id, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def is_end(self, token_id: int) -> bool:
        return bool(C.llama_vocab_is_eog(self._vocab, token_id))

    def attributes(self, token_id: int) -> int:
        return int(C.llama_vocab_get_attr(self._vocab, token_id))

    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends a generation (three in Gemma's vocabulary: one is not enough)."""
        return frozenset(t for t in range(self.n_tokens) if self.is_end(t))


# ---- context ---------------------------------------------------------------------------------------


class Batch:
    """The tokens of one `llama_decode`, in numpy arrays that llama.cpp reads in place."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)  # one sequence per token
        self._wants_logits = np.zeros(capacity, np.int8)
        base, stride = self._seq.ctypes.data, self._seq.itemsize
        self._seq_pointers = (base + stride * np.arange(capacity)).astype(np.uintp)
        self._struct = C.llama_batch(
            0,
            self._token.ctypes.data_as(ctypes.POINTER(C.llama_token)),
            None,
            self._pos.ctypes.data_as(ctypes.POINTER(C.llama_pos)),
            self._n_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            self._seq_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id))),
            self._wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def clear(self) -> None:
        self.num_tokens = 0

    def add(
        self, seq_id: int, start: int, tokens: npt.NDArray[np.int32] | Sequence[int], *, wants_logits: bool
    ) -> None:
        """Append `tokens` at positions start… of `seq_id`; logits are wanted for the last one only."""
        first, end = self.num_tokens, self.num_tokens + len(tokens)
        assert end <= self.capacity, f"{end} tokens do not fit a batch of {self.capacity}"
        self._token[first:end] = tokens
        self._pos[first:end] = np.arange(start, start + len(tokens))
        self._seq[first:end] = seq_id
        self._wants_logits[first:end] = 0
        self._wants_logits[end - 1] = wants_logits
        self.num_tokens = end

    @property
    def struct(self) -> C.llama_batch:
        self._struct.n_tokens = self.num_tokens
        return self._struct


class Context:
    """KV cache and compute buffers of one model: one unified pool of cells for all sequences."""

    def __init__(
        self,
        model: Model,
        *,
        num_kv_cells: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_ubatch_tokens: int,
        num_threads: int,
        flash_attention: str,
        swa_full: bool,
        kv_type: str,
    ) -> None:
        assert 1 <= max_num_seqs <= MAX_SEQUENCES, f"llama.cpp has {MAX_SEQUENCES} sequences, not {max_num_seqs}"
        params = C.llama_context_default_params()
        params.n_ctx = num_kv_cells
        params.n_batch = max_num_batched_tokens
        params.n_ubatch = min(max_num_batched_tokens, max_ubatch_tokens)
        params.n_seq_max = max_num_seqs
        params.n_outputs_max = max_num_seqs  # left at 0 the logits buffer is as long as the batch: 10x the memory
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = FLASH_ATTENTION[flash_attention]
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.swa_full = swa_full
        params.kv_unified = True
        params.no_perf = True
        self._context = _loaded(
            f"cannot create a context of {num_kv_cells} tokens",
            lambda: C.llama_init_from_model(model.handle, params),
            no_reason="out of memory?",
        )
        self._memory = C.llama_get_memory(self._context)
        self._n_vocab = model.vocab.n_tokens
        self._lengths = [0] * max_num_seqs
        self.n_ctx = int(C.llama_n_ctx(self._context))

    def length(self, seq_id: int) -> int:
        """Tokens that `seq_id` holds, by our own count."""
        return self._lengths[seq_id]

    def stored_length(self, seq_id: int) -> int:
        """The same by llama.cpp's count; differs from ours only after a failed decode."""
        return int(C.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    def drop(self, seq_id: int) -> None:
        """Forget a whole sequence. (A range in the middle, or −1, would hit others.)"""
        assert 0 <= seq_id < len(self._lengths), f"no sequence {seq_id}"
        C.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
        self._lengths[seq_id] = 0

    def decode(self, batch: Batch, added: Sequence[tuple[int, int]]) -> int:
        """Compute the batch. `added` = (seq_id, tokens) per piece of it, for the mirror.

        Returns llama_decode's code: 0 done; 1 no room, nothing changed; anything else is a broken context.
        """
        code = int(C.llama_decode(self._context, batch.struct))
        if code == 0:
            for seq_id, count in added:
                self._lengths[seq_id] += count
        return code

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
