"""A backend on torch and safetensors: models as `transformers` defines them, attention and KV cache our own.

`load.load` is all that others need. Nothing outside this package imports torch, and this package is only imported
where a model is to be run on it.
"""

from __future__ import annotations

import os


def share_cores() -> None:
    """Before torch is imported: its threads sleep when they wait for each other, instead of spinning.

    Where others want the cores too, the one who is waited for may not be running: 8 streams on two cores under load
    went from 2 to 50 tokens per second.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
