"""Linear layers on a CPU with their weights laid out as oneDNN's kernels read them.

torch lays them out anew in every call. Of a matrix of [262144, 640] and 8 rows that was three fifths of the time (18 ms
against 7, two cores with AVX-512 BF16); the numbers are the same.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

HINT_ROWS: Final = 64  # the layout is the same for any number of rows that was tried, and so are the results


class PackedLinear(nn.Module):  # type: ignore[misc]
    """Takes the place of `linear`. `num_bytes`: of the weights as they lie now."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.num_bytes = int(linear.weight.nbytes)
        self._bias = linear.bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), HINT_ROWS)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return out


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(model: nn.Module) -> None:
    """Every plain linear layer of `model`, one after the other."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype is torch.bfloat16:
                setattr(parent, name, PackedLinear(child))
