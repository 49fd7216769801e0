"""Models and vocabularies of llama.cpp, and its log; with `context.py`, `embedder.py` and `native_sampler.py` the only
files that touch its C API.

Each class frees what it allocated, in `close()`. Order matters: batch, context, model, backend; callbacks
outlive them all.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import llama_cpp as C
from llama_cpp._ggml import libggml as _ggml

from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.model_sizes import KV_TYPE_BYTES
from homeai.vocabulary import InfillTokens

T = TypeVar("T")

log = logging.getLogger("llama.cpp")

KV_TYPES: Final = {"f16": C.GGML_TYPE_F16, "q8_0": C.GGML_TYPE_Q8_0, "q4_0": C.GGML_TYPE_Q4_0}
FILE_TYPES: Final[dict[int, str]] = {  # general.file_type → "Q4_K_M"
    value: name.removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_")
    for name, value in vars(C).items()
    if name.startswith("LLAMA_FTYPE_") and isinstance(value, int)
}
CONTROL: Final = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
KEEPS_ALL_TEXT: Final = {C.LLAMA_VOCAB_TYPE_SPM, C.LLAMA_VOCAB_TYPE_BPE, C.LLAMA_VOCAB_TYPE_RWKV}

# ---- llama.cpp's log, routed by level --------------------------------------------------------------

# ggml_log_level; its INFO is hundreds of lines per load
_LEVELS: Final = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_load_errors: list[str] | None = None  # while something loads: its errors, which the exception then tells
_listeners: list[Callable[[str], None]] = []  # get every line
_partial: list[str] = []
_partial_level = logging.DEBUG


@C.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user_data: object) -> None:
    global _partial_level
    if level != 5:  # 5 continues the previous line
        _partial_level = _LEVELS.get(level, logging.DEBUG)
    if _partial_level < logging.WARNING and not log.isEnabledFor(_partial_level) and not _listeners:
        return
    _partial.append(text.decode("utf-8", "replace"))
    if not text.endswith(b"\n"):
        return
    line = "".join(_partial).strip()
    _partial.clear()
    for listener in _listeners:
        listener(line)
    if _load_errors is not None and _partial_level >= logging.ERROR:
        _load_errors.append(line)
    elif line.strip(".") and not _listeners:
        log.log(_partial_level, "%s", line)


@contextmanager
def listening() -> Iterator[list[str]]:
    """The lines that llama.cpp logs meanwhile, whatever their level. The log gets none of them."""
    lines: list[str] = []
    _listeners.append(lines.append)
    try:
        yield lines
    finally:
        _listeners.remove(lines.append)


_NO_MEMORY: Final = re.compile("alloc|out of memory", re.IGNORECASE)  # "cudaMalloc failed", "unable to allocate", …


def loaded(what: str, load: Callable[[], T], no_reason: str) -> T:
    """The handle that `load` returns. When it is null, llama.cpp's log tells why: the error says it, and only once."""
    global _load_errors
    errors: list[str] = []
    _load_errors = errors
    try:
        handle = load()
    finally:
        _load_errors = None
    if not handle:
        reason = "; ".join(errors) or no_reason
        raise (DeviceUnavailable if _NO_MEMORY.search(reason) else ModelLoadError)(f"{what}: {reason}")
    for line in errors:
        log.error("%s", line)
    return handle


_backend_ready = False


def init_backend() -> None:
    global _backend_ready
    if not _backend_ready:
        C.llama_log_set(_on_log, ctypes.c_void_p(0))
        C.llama_backend_init()
        _backend_ready = True


def supports_gpu() -> bool:
    """True when this build can offload and sees a device to offload to."""
    init_backend()
    return bool(C.llama_supports_gpu_offload())


_GPU_TYPES: Final = (1, 2)  # enum ggml_backend_dev_type: a card, and one that shares the CPU's memory
_ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
_ggml.ggml_backend_dev_get.restype, _ggml.ggml_backend_dev_get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_ggml.ggml_backend_dev_type.restype, _ggml.ggml_backend_dev_type.argtypes = ctypes.c_int, [ctypes.c_void_p]
_ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 2]


def device_memory() -> tuple[int, int] | None:
    """Free and total bytes of all GPUs that llama.cpp would use, together; None without one. It sees what the driver
    lets this process see, and opens the GPUs."""
    init_backend()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    sizes: list[tuple[int, int]] = []
    for index in range(_ggml.ggml_backend_dev_count()):
        device = _ggml.ggml_backend_dev_get(index)
        if _ggml.ggml_backend_dev_type(device) in _GPU_TYPES:
            _ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            sizes.append((free.value, total.value))
    return (sum(f for f, _ in sizes), sum(t for _, t in sizes)) if sizes else None


# ---- model and vocabulary --------------------------------------------------------------------------


class Model:
    """Weights (or, with `vocab_only`, just vocabulary and metadata) of one GGUF file.

    `repack` copies some of them into a form that this CPU likes better; without it all stay in the mapped file, which
    other processes share. With `no_alloc` there are no weights: contexts of it say what they would take.
    Raises `ModelLoadError`, with llama.cpp's own reason, for anything that is not a loadable GGUF.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_only: bool = False,
        n_gpu_layers: int = 0,
        repack: bool = True,
        no_alloc: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        check_is_gguf(path)
        init_backend()
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        params.use_extra_bufts = repack
        params.no_alloc = no_alloc
        if no_alloc:
            params.load_mode = C.LLAMA_LOAD_MODE_NONE  # a mapped file is an allocation

        def progress(fraction: float, _user_data: object) -> bool:
            if on_progress is not None:
                on_progress(fraction)
            return True

        self._progress = C.llama_progress_callback(progress)  # must outlive the load
        params.progress_callback = self._progress
        self._model = loaded(
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
    def n_swa(self) -> int:
        """The sliding window in tokens; 0 without one."""
        return int(C.llama_model_n_swa(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """All or some layers keep one state instead of cells: nothing of it can be taken back."""
        return bool(C.llama_model_is_recurrent(self.handle) or C.llama_model_is_hybrid(self.handle))

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

    @property
    def num_params(self) -> int:
        return int(C.llama_model_n_params(self.handle))

    def metadata(self) -> dict[str, str]:
        """Every metadata value of the GGUF that is not a list, as text."""
        key = ctypes.create_string_buffer(1024)
        found = {}
        for index in range(C.llama_model_meta_count(self.handle)):
            C.llama_model_meta_key_by_index(self.handle, index, key, len(key))
            name = key.value.decode("utf-8", "replace")
            found[name] = self.meta(name) or ""
        return found

    def close(self) -> None:
        if self._model:
            C.llama_model_free(self._model)
            self._model = None


def check_is_gguf(path: Path) -> None:
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

    def pieces(self) -> Iterator[tuple[bytes, bool]]:
        """Every token's bytes, with the names of control tokens, and whether it is one: 0.2 s for 262,144 tokens."""
        size = 256
        buffer = ctypes.create_string_buffer(size)
        for token_id in range(self.n_tokens):
            length = C.llama_token_to_piece(self._vocab, token_id, buffer, size, 0, True)
            piece = buffer.raw[:length] if length >= 0 else self.piece(token_id, special=True)
            yield piece, bool(C.llama_vocab_get_attr(self._vocab, token_id) & CONTROL)

    def infill_tokens(self) -> InfillTokens | None:
        """None for a model that was not trained to fill a gap."""
        calls = C.llama_vocab_fim_pre, C.llama_vocab_fim_suf, C.llama_vocab_fim_mid
        prefix, suffix, middle = (int(call(self._vocab)) for call in calls)
        repo, file = int(C.llama_vocab_fim_rep(self._vocab)), int(C.llama_vocab_fim_sep(self._vocab))
        if min(prefix, suffix, middle) < 0:
            return None
        return InfillTokens(prefix, suffix, middle, repo if repo >= 0 else None, file if file >= 0 else None)

    def is_end(self, token_id: int) -> bool:
        return bool(C.llama_vocab_is_eog(self._vocab, token_id))

    def is_control(self, token_id: int) -> bool:
        return bool(C.llama_vocab_get_attr(self._vocab, token_id) & CONTROL)

    def is_user_defined(self, token_id: int) -> bool:
        return bool(C.llama_vocab_get_attr(self._vocab, token_id) & C.LLAMA_TOKEN_ATTR_USER_DEFINED)

    def max_token_bytes(self) -> int | None:
        """No token stands for more bytes of text; None for vocabularies that drop or change some of the text."""
        if C.llama_vocab_type(self._vocab) not in KEEPS_ALL_TEXT:
            return None
        return max(len(C.llama_vocab_get_text(self._vocab, token_id)) for token_id in range(self.n_tokens))

    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends a generation (three in Gemma's vocabulary: one is not enough).

        llama.cpp marks all of them as control tokens, but for an EOS or EOT that a file names and marks otherwise.
        """
        named = {int(C.llama_vocab_eos(self._vocab)), int(C.llama_vocab_eot(self._vocab))} - {-1}
        return frozenset(filter(self.is_end, named.union(self.special_ids)))

    @cached_property
    def special_ids(self) -> list[int]:
        """Tokens that are more than ordinary text."""
        attributes, vocab, ordinary = C.llama_vocab_get_attr, self._vocab, C.LLAMA_TOKEN_ATTR_NORMAL
        return [token_id for token_id in range(self.n_tokens) if attributes(vocab, token_id) != ordinary]
