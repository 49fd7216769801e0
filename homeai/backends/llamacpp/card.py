"""What a GGUF says of its model."""

from __future__ import annotations

import datetime
import re
from typing import Final

from homeai.backends.llamacpp.binding import FILE_TYPES, Model
from homeai.model_card import ModelCard, Value
from homeai.model_digest import model_digest

TEMPLATE: Final = "tokenizer.chat_template"  # too long for metadata; the vocabulary has it

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"-?[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?")
_TEXT_KEYS: Final = re.compile(r"general\.(?!file_type$|quantization_version$|alignment$|parameter_count$)")


def read_card(model: Model) -> ModelCard:
    stat = model.path.stat()
    metadata = {key: _value(key, text) for key, text in sorted(model.metadata().items()) if key != TEMPLATE}
    return ModelCard(
        file_format="gguf",
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
