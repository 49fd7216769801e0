"""A backend on torch and safetensors: models as `transformers` defines them, attention and KV cache our own.

`load.load` is all that others need. Nothing outside this package imports torch, and this package is only imported
where a model is to be run on it.
"""

from __future__ import annotations

import os

ENVIRONMENT = {
    # Threads sleep when they wait for each other, instead of spinning. Where others want the cores too, the one who is
    # waited for may not be running: 8 streams on two cores under load went from 2 to 50 tokens per second.
    "OMP_WAIT_POLICY": "passive",
    # A kernel is made for every number of rows, and a thousand are kept, twice: prompts of 1 to 512 tokens grew the
    # process by 1.6 GB. With so few it grows by 0.2 GB and is no slower.
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}


def set_environment() -> None:
    """Before torch is imported: what it reads then, unless the owner has set it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
