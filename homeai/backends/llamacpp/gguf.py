"""What a GGUF file says of its tensors, through ggml's own reader: nothing of the weights is read."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from llama_cpp._ggml import libggml

from homeai.backends.llamacpp.binding import check_is_gguf, init_backend, loaded
from homeai.model_sizes import ModelSizes

_UINT32: Final = 4  # enum gguf_type
_INT32: Final = 5
_STRING: Final = 8
_ARRAY: Final = 9
_LAYER: Final = re.compile(r"blk\.(\d+)\.")
_PART: Final = re.compile(r"-00001-of-(\d{5})\.gguf$")
_EMBEDDINGS: Final = re.compile(r"(token_embd|per_layer_token_embd|token_types|position_embd)\.")


class _Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


def _declare(name: str, result: type, *arguments: type) -> None:
    function = getattr(libggml, name)
    function.restype, function.argtypes = result, arguments


_declare("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Params)
_declare("gguf_free", None, ctypes.c_void_p)  # type: ignore[arg-type]
_declare("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p)
_declare("gguf_get_tensor_name", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_get_tensor_size", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_find_key", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
_declare("gguf_get_kv_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_get_val_u32", ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_get_val_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_get_arr_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_get_arr_n", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
_declare("gguf_get_arr_data", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _File:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def tensors(self) -> Iterator[tuple[str, int]]:
        """Names and bytes."""
        for index in range(libggml.gguf_get_n_tensors(self._handle)):
            name: bytes = libggml.gguf_get_tensor_name(self._handle, index)
            yield name.decode(), libggml.gguf_get_tensor_size(self._handle, index)

    def text(self, key: str) -> str:
        index = self._find(key, _STRING)
        return libggml.gguf_get_val_str(self._handle, index).decode() if index >= 0 else ""

    def number(self, key: str, default: int = 0) -> int:
        index = self._find(key, _UINT32)
        return int(libggml.gguf_get_val_u32(self._handle, index)) if index >= 0 else default

    def numbers(self, key: str, count: int) -> list[int]:
        """One for each layer, where the file may say one for all."""
        index = self._find(key, _ARRAY)
        if index < 0:
            return [self.number(key)] * count
        if libggml.gguf_get_arr_type(self._handle, index) not in (_UINT32, _INT32):
            return [0] * count
        size = libggml.gguf_get_arr_n(self._handle, index)
        data = ctypes.cast(libggml.gguf_get_arr_data(self._handle, index), ctypes.POINTER(ctypes.c_int32))
        return data[:size]

    def size(self, key: str) -> int:
        """Entries of a list."""
        index = self._find(key, _ARRAY)
        return int(libggml.gguf_get_arr_n(self._handle, index)) if index >= 0 else 0

    def _find(self, key: str, kind: int) -> int:
        index = int(libggml.gguf_find_key(self._handle, key.encode()))
        return index if index >= 0 and libggml.gguf_get_kv_type(self._handle, index) == kind else -1


def read_sizes(path: Path) -> ModelSizes:
    """Of the model in `path` and its other parts. Raises `ModelLoadError`."""
    tensors: dict[str, int] = {}
    for part in parts(path):
        with _opened(part) as file:
            tensors.update(file.tensors())
    with _opened(path) as file:
        return _sizes(file, tensors)


def parts(path: Path) -> list[Path]:
    """All files of a split model, of which `path` is the first."""
    match = _PART.search(path.name)
    if match is None:
        return [path]
    stem, count = path.name[: match.start()], int(match[1])
    return [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def _sizes(file: _File, tensors: dict[str, int]) -> ModelSizes:
    arch = file.text("general.architecture")
    num_layers = file.number(f"{arch}.block_count")
    layers = [0] * num_layers
    embedding = output = 0
    for name, size in tensors.items():
        if match := _LAYER.match(name):
            number = int(match[1])
            layers += [0] * (number + 1 - len(layers))
            layers[number] += size
        elif _EMBEDDINGS.match(name):
            embedding += size
        else:
            output += size
    num_embd = file.number(f"{arch}.embedding_length")
    num_heads = max([1, *file.numbers(f"{arch}.attention.head_count", num_layers)])
    num_kv_heads = file.numbers(f"{arch}.attention.head_count_kv", num_layers)
    if not any(num_kv_heads):
        num_kv_heads = [num_heads] * num_layers
    head_size = num_embd // num_heads
    key_size = file.number(f"{arch}.attention.key_length", head_size)
    value_size = file.number(f"{arch}.attention.value_length", head_size)
    return ModelSizes(
        embedding=embedding,
        layers=tuple(layers),
        output=output,
        is_tied="output.weight" not in tensors,
        kv_values=sum(num_kv_heads) * (key_size + value_size),
        num_vocab=file.size("tokenizer.ggml.tokens") or file.number(f"{arch}.vocab_size"),
        num_embd=num_embd,
        num_ff=max([0, *file.numbers(f"{arch}.feed_forward_length", num_layers)]),
        n_ctx_train=file.number(f"{arch}.context_length"),
    )


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    check_is_gguf(path)
    init_backend()  # for its log
    handle = loaded(
        f"cannot load {path.name}",
        lambda: libggml.gguf_init_from_file(str(path).encode(), _Params(True, None)),
        no_reason="its header cannot be read",
    )
    try:
        yield _File(handle)
    finally:
        libggml.gguf_free(handle)
