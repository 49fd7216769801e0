"""How large the parts of a model are, and what follows for memory: by arithmetic, without a backend.

The parts of the weights are exact. KV and compute buffers are computed for the plain case (every layer keeps every
cell, flash attention): at least what is needed, roughly. A backend that can say it exactly does (`fitting.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from homeai.memory_plan import MIB, Choice, Need, Needs

KV_TYPE_BYTES: Final = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
PROCESS_BYTES: Final = 160 * MIB  # interpreter, libraries, vocabulary, grammars
MASK_BYTES: Final = 6  # a cell of the attention mask, in float32 and float16
NUM_ACTIVATIONS: Final = 8  # rows of the embedding's width that live at once, about


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """layers: bytes of each repeating layer, in order. output: what comes behind them; where it shares the
    embedding's weights it is a copy of them on a GPU. kv_values: keys and values of one token, over all layers."""

    embedding: int
    layers: tuple[int, ...]
    output: int
    is_tied: bool
    kv_values: int
    num_vocab: int
    num_embd: int
    num_ff: int
    n_ctx_train: int

    @property
    def weights(self) -> int:
        return self.embedding + sum(self.layers) + self.output

    @property
    def num_gpu_layers(self) -> int:
        return len(self.layers) + 1

    def kv_bytes(self, num_cells: int, kv_type: str) -> int:
        return int(num_cells * self.kv_values * KV_TYPE_BYTES[kv_type])


@dataclass(frozen=True, slots=True)
class Buffers:
    """KV of all layers, and what a step computes in: on the device (0 without one) and in ordinary memory."""

    kv: int
    device_compute: int
    host_compute: int

    def scaled(self, factor: float) -> Buffers:
        return Buffers(int(self.kv * factor), int(self.device_compute * factor), int(self.host_compute * factor))


@dataclass(frozen=True, slots=True)
class StepSize:
    """num_outputs: rows of logits at most. num_tokens: that are computed at a time."""

    num_outputs: int
    num_tokens: int


def rough_buffers(sizes: ModelSizes, choice: Choice, step: StepSize, *, on_device: bool) -> Buffers:
    logits = 4 * step.num_outputs * sizes.num_vocab
    width = NUM_ACTIVATIONS * sizes.num_embd + 3 * sizes.num_ff
    compute = logits + step.num_tokens * (4 * width + MASK_BYTES * choice.num_cells)
    kv = sizes.kv_bytes(choice.num_cells, choice.kv_type)
    return Buffers(kv, compute if on_device else 0, logits + (step.num_tokens * 4 * width if on_device else compute))


def needs(sizes: ModelSizes, buffers: Buffers, choice: Choice, *, on_device: bool) -> Needs:
    """Layers go to the device from the last one on, each with its KV; the embedding never does."""
    count = min(choice.num_gpu_layers, sizes.num_gpu_layers) if on_device else 0
    num_repeating = max(0, count - 1)
    on_gpu = sum(sizes.layers[len(sizes.layers) - num_repeating :]) if num_repeating else 0
    output = (sizes.embedding if sizes.is_tied else 0) + sizes.output
    kv_on_gpu = buffers.kv * num_repeating // max(1, len(sizes.layers))
    host = Need(
        weights=sizes.weights - on_gpu - (sizes.output if count else 0),
        kv=buffers.kv - kv_on_gpu,
        compute=buffers.host_compute + (buffers.device_compute if 0 < count < sizes.num_gpu_layers else 0),
        process=PROCESS_BYTES,
        host_cache=choice.host_cache_bytes,
    )
    if not on_device:
        return Needs(None, host)
    return Needs(Need(weights=on_gpu + (output if count else 0), kv=kv_on_gpu, compute=buffers.device_compute), host)
