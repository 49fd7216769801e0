"""Weights as a CPU's kernels read them: the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from homeai.backends.torch.packed import PackedLinear, can_pack, pack

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(not can_pack(torch.bfloat16, CPU), reason="this processor has no kernels for bfloat16")


@pytest.mark.parametrize("bias", [False, True])
def test_results_are_those_of_the_layer_whose_place_it_takes(bias: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(96, 1000, bias=bias, dtype=torch.bfloat16)
    packed = PackedLinear(linear)
    with torch.inference_mode():
        for num_rows in (1, 3, 8, 13, 64, 300):
            rows = torch.randn(1, num_rows, 96, dtype=torch.bfloat16)
            assert torch.equal(packed(rows), linear(rows))


def test_only_plain_layers_in_bfloat16_are_packed() -> None:
    class Quantised(nn.Linear):
        pass

    model = nn.Sequential(
        nn.Linear(32, 32, dtype=torch.bfloat16),
        nn.Sequential(nn.Linear(32, 32), Quantised(32, 32, dtype=torch.bfloat16)),
        nn.Embedding(8, 32, dtype=torch.bfloat16),
    )
    pack(model)
    kinds = [type(module) for module in model.modules() if not list(module.children())]
    assert kinds == [PackedLinear, nn.Linear, Quantised, nn.Embedding]


def test_other_devices_and_types_are_left_alone() -> None:
    assert not can_pack(torch.float32, CPU)
    assert not can_pack(torch.bfloat16, torch.device("cuda"))
