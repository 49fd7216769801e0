"""What is known of a model without its weights: names, sizes, metadata, and how to tell it from others."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`digest` is `model_digest`'s. `metadata` has the names that a GGUF gives it, without lists."""

    file_format: str  # gguf | safetensors
    architecture: str
    quantization: str
    num_params: int
    size_bytes: int
    modified_at: datetime.datetime
    digest: str
    metadata: Mapping[str, Value]
