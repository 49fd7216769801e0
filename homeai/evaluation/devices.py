"""Estimates for machines we have not measured: the roofline of a graphics card and the size of a model.

A step reads all weights once and the context of everybody in it, and multiplies every token with the weights; what
takes longer counts (Williams et al., 2009). Figures are public specifications: NVIDIA's for the cards (tensor cores,
FP16 in and FP32 accumulated, dense), the published GGUF files and configurations for the models. How much of them is
reached is a guess from public llama.cpp benchmarks of these cards, so every result says "estimate".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from homeai.errors import ConfigError
from homeai.evaluation.cost_model import StepShape
from homeai.scheduling.plan import KVOp, KVOpKind

BANDWIDTH_REACHED: Final = 0.6
COMPUTE_REACHED: Final = 0.6
PCIE_REACHED: Final = 0.7
STEP_OVERHEAD_S: Final = 0.0008  # launching kernels, our own work
ROW_OVERHEAD_S: Final = 0.0001  # drawing a token
MEMORY_RESERVED: Final = 1.5e9  # bytes: buffers, the desktop


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    memory_bytes: float
    bandwidth: float  # bytes/s
    compute: float  # FLOP/s
    pcie: float  # bytes/s, one way


@dataclass(frozen=True, slots=True)
class ModelSize:
    name: str
    num_parameters: float
    weight_bytes: float
    kv_bytes_per_token: int  # f16: layers × 2 × KV heads × head size × 2


DEVICES: Final = {
    "rtx-5090": Device("RTX 5090", 32e9, 1792e9, 209.5e12, 64e9),
    "rtx-4090": Device("RTX 4090", 24e9, 1008e9, 165.2e12, 32e9),
    "rtx-3090": Device("RTX 3090", 24e9, 936e9, 71e12, 32e9),
    "rtx-3060": Device("RTX 3060 12 GB", 12e9, 360e9, 25.5e12, 32e9),
}

MODELS: Final = {
    "3b-q4": ModelSize("3B Q4_K_M", 3.2e9, 2.0e9, 28 * 2 * 8 * 128 * 2),
    "8b-q4": ModelSize("8B Q4_K_M", 8.0e9, 4.9e9, 32 * 2 * 8 * 128 * 2),
    "8b-q8": ModelSize("8B Q8_0", 8.0e9, 8.5e9, 32 * 2 * 8 * 128 * 2),
    "14b-q4": ModelSize("14B Q4_K_M", 14.8e9, 9.0e9, 40 * 2 * 8 * 128 * 2),
    "32b-q4": ModelSize("32B Q4_K_M", 32.8e9, 19.8e9, 64 * 2 * 8 * 128 * 2),
}


@dataclass(frozen=True, slots=True)
class RooflineCost:
    device: Device
    model: ModelSize

    @property
    def label(self) -> str:
        return f"{self.model.name} on {self.device.name} (ESTIMATE from public specifications, not measured)"

    @property
    def max_kv_cells(self) -> int:
        """Tokens of context that fit beside the weights."""
        free = self.device.memory_bytes - MEMORY_RESERVED - self.model.weight_bytes
        return max(0, int(free // self.model.kv_bytes_per_token))

    def step_s(self, shape: StepShape) -> float:
        bandwidth = self.device.bandwidth * BANDWIDTH_REACHED
        compute = self.device.compute * COMPUTE_REACHED
        weights_s = self.model.weight_bytes / bandwidth
        multiply_s = 2 * self.model.num_parameters * shape.num_tokens / compute
        context_s = self.model.kv_bytes_per_token * shape.num_context_tokens / bandwidth
        overhead_s = STEP_OVERHEAD_S + ROW_OVERHEAD_S * shape.num_decode_tokens
        return overhead_s + max(weights_s, multiply_s) + context_s

    def kv_op_s(self, op: KVOp) -> float:
        if op.kind not in (KVOpKind.SAVE, KVOpKind.RESTORE):
            return 0.0
        return op.length * self.model.kv_bytes_per_token / (self.device.pcie * PCIE_REACHED)


def estimate(device: str, model: str) -> RooflineCost:
    """Raises `ConfigError` for names that are not known, and for a model that does not fit."""
    if device not in DEVICES:
        raise ConfigError(f"--preset {device}: known are {', '.join(DEVICES)}")
    if model not in MODELS:
        raise ConfigError(f"--model-size {model}: known are {', '.join(MODELS)}")
    cost = RooflineCost(DEVICES[device], MODELS[model])
    if cost.max_kv_cells == 0:
        raise ConfigError(
            f"{cost.model.name} needs {cost.model.weight_bytes / 1e9:.1f} GB for its weights alone, "
            f"too much for the {cost.device.memory_bytes / 1e9:.0f} GB of an {cost.device.name}"
        )
    return cost
