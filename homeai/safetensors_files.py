"""What safetensors files hold, from their headers: nothing of the weights is read.

A file begins with the header's length (8 bytes, little-endian) and the header: JSON with each tensor's type, shape and
place (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Final

import msgspec

from homeai.errors import ModelLoadError

LENGTH: Final = struct.Struct("<Q")
MAX_HEADER_BYTES: Final = 100_000_000  # safetensors' own bound


class Tensor(msgspec.Struct, frozen=True):
    """`dtype` as safetensors calls it: BF16, F8_E4M3, I32 …; `data_offsets` count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


def tensors(directory: Path) -> dict[str, Tensor]:
    """By name, of all `*.safetensors` in it. Raises `ModelLoadError` where one of them is damaged or incomplete."""
    found: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        found |= read_header(path)
    missing = sorted(_indexed(directory) - {path.name for path in directory.glob("*.safetensors")})
    if missing:
        raise ModelLoadError(f"{directory} is not complete: {', '.join(missing)} of its index is not there")
    return found


def read_header(path: Path) -> dict[str, Tensor]:
    """Raises `ModelLoadError`."""
    try:
        with path.open("rb") as file:
            start = file.read(LENGTH.size)
            length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else 0
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise ModelLoadError(f"not a safetensors file: {path} begins with {start!r}")
            header = file.read(length)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from None
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        found = {name: msgspec.json.decode(entry, type=Tensor) for name, entry in entries.items()}
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"not a safetensors file: the header of {path} is damaged: {error}") from None
    needed = LENGTH.size + length + max((tensor.data_offsets[1] for tensor in found.values()), default=0)
    if size_bytes < needed:
        raise ModelLoadError(f"{path} is cut off: it has {size_bytes} bytes, its header says {needed}")
    return found


def _indexed(directory: Path) -> set[str]:
    """The files that the index names; none where there is no index."""
    path = directory / "model.safetensors.index.json"
    if not path.is_file():
        return set()
    try:
        return set(msgspec.json.decode(path.read_bytes(), type=_Index).weight_map.values())
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
