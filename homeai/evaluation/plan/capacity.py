"""What fits into a card's memory: weights, KV cells, what a step computes in, the driver's own, and a margin.

The same arithmetic as before a load (`model_sizes.py`), for a card that is not here. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from homeai.evaluation.plan.architecture import Architecture
from homeai.evaluation.plan.gpus import GPU
from homeai.memory_plan import CELL_STEP, MIB, Choice
from homeai.model_sizes import StepSize, needs, rough_buffers

RUNTIME_BYTES: Final = 600 * MIB  # CUDA context, kernels and cuBLAS' workspace: an estimate
UBATCH_TOKENS: Final = 512  # that the engine computes at a time on a GPU


@dataclass(frozen=True, slots=True)
class Setting:
    """margin: part of the memory that stays free for others, 0 … 1. num_outputs: rows of logits in one step."""

    num_seqs: int
    context: int  # tokens of each sequence
    kv_type: str = "f16"
    swa_full: bool = True
    margin: float = 0.05
    num_outputs: int = 32

    @property
    def num_cells(self) -> int:
        return -(-self.num_seqs * self.context // CELL_STEP) * CELL_STEP


@dataclass(frozen=True, slots=True)
class Need:
    weights: int
    kv: int
    compute: int
    runtime: int
    margin: int
    total_memory: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute + self.runtime + self.margin

    @property
    def free(self) -> int:
        """What would be left; negative where it does not fit."""
        return self.total_memory - self.total

    @property
    def fits(self) -> bool:
        return self.free >= 0


def need(model: Architecture, gpu: GPU, setting: Setting) -> Need:
    return _need(model, gpu, setting, setting.num_cells)


def max_cells(model: Architecture, gpu: GPU, setting: Setting) -> int:
    """The most tokens of context that fit, whoever's they are; 0 where the weights alone do not."""
    low, high = 0, int(gpu.memory_bytes // max(1, model.sizes.kv_bytes(CELL_STEP, setting.kv_type)))
    if model.window is not None and not setting.swa_full:
        high *= model.num_layers
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _need(model, gpu, setting, middle * CELL_STEP).fits else (low, middle - 1)
    return low * CELL_STEP


def max_seqs(model: Architecture, gpu: GPU, setting: Setting, kv_type: str, contexts: Sequence[int]) -> list[int]:
    """For each context length, how many sequences of it fit at once."""
    num_cells = max_cells(model, gpu, replace(setting, kv_type=kv_type))
    return [num_cells // context for context in contexts]


def _need(model: Architecture, gpu: GPU, setting: Setting, num_cells: int) -> Need:
    sizes = model.sizes
    choice = Choice(num_cells, setting.num_seqs, setting.kv_type, sizes.num_gpu_layers, host_cache_bytes=0)
    buffers = rough_buffers(sizes, choice, StepSize(setting.num_outputs, UBATCH_TOKENS), on_device=True)
    device = needs(sizes, buffers, choice, on_device=True).device
    assert device is not None, "a card was asked for"
    return Need(
        weights=device.weights,
        kv=model.kv_bytes(num_cells, setting.num_seqs, UBATCH_TOKENS, setting.kv_type, swa_full=setting.swa_full),
        compute=device.compute,
        runtime=RUNTIME_BYTES,
        margin=int(gpu.memory_bytes * setting.margin),
        total_memory=int(gpu.memory_bytes),
    )
