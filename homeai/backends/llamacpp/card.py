"""What is known of a model file without its weights: names, sizes, metadata, and how to tell it from others."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from homeai.backends.llamacpp.binding import FILE_TYPES, Model
from homeai.model_digest import model_digest

Value = str | int | float | bool

TEMPLATE: Final = "tokenizer.chat_template"  # too long for metadata; the vocabulary has it

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"-?[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?")
_TEXT_KEYS: Final = re.compile(r"general\.(?!file_type$|quantization_version$|alignment$|parameter_count$)")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`digest` is `model_digest`'s. `metadata` is the GGUF's, without its lists."""

    architecture: str
    quantization: str
    num_params: int
    size_bytes: int
    modified_at: datetime.datetime
    digest: str
    metadata: Mapping[str, Value]

    @classmethod
    def read(cls, model: Model) -> Self:
        stat = model.path.stat()
        metadata = {key: _value(key, text) for key, text in sorted(model.metadata().items()) if key != TEMPLATE}
        return cls(
            architecture=str(metadata.get("general.architecture", "unknown")),
            quantization=_file_type(metadata.get("general.file_type")),
            num_params=model.num_params,
            size_bytes=stat.st_size,
            modified_at=datetime.datetime.fromtimestamp(stat.st_mtime, datetime.UTC),
            digest=model_digest(model.path, stat.st_size),
            metadata=metadata,
        )


def _file_type(value: Value | None) -> str:
    return FILE_TYPES.get(value, "unknown") if isinstance(value, int) else "unknown"


def _value(key: str, text: str) -> Value:
    """llama.cpp tells every value as text, and not which type it had."""
    if _TEXT_KEYS.match(key):
        return text
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
