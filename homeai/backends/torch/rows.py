"""Where the logits of what was computed are."""

from __future__ import annotations

from typing import NamedTuple

import torch

from homeai.backends.shared.work import Work


class Rows(NamedTuple):
    """Computed work and its logits: rows `first` … of `logits`, float32 [rows, vocabulary]."""

    work: Work
    logits: torch.Tensor
    first: int
