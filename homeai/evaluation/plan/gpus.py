"""The graphics cards that plans and simulations know, as their vendor specifies them. Nothing here was measured.

Tensor FLOP/s are dense and accumulated in FP32; where a document gives them with sparsity only, that is its half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from homeai.errors import ConfigError

_BLACKWELL: Final = "NVIDIA RTX Blackwell GPU Architecture (white paper), table of GeForce RTX 50 against RTX 40"
_ADA: Final = "NVIDIA Ada GPU Architecture (white paper v2), appendix A"
_AMPERE: Final = "NVIDIA Ampere GA102 GPU Architecture (white paper v2), appendix A"
_PCIE_4: Final = 32e9
_PCIE_5: Final = 64e9


@dataclass(frozen=True, slots=True)
class GPU:
    """fp8: FLOP/s, None where the tensor cores have no FP8. pcie: one way. watts: of the board, at most.

    `source`: the document that the figures are from; of which one is derived, it says how.
    """

    name: str
    memory_bytes: float
    bandwidth: float  # bytes/s
    fp16: float  # FLOP/s
    fp8: float | None
    pcie: float  # bytes/s
    watts: float
    source: str


GPUS: Final = {
    "rtx-5090": GPU("RTX 5090", 32e9, 1792e9, 209.5e12, 419e12, _PCIE_5, 575, _BLACKWELL),
    "rtx-5080": GPU("RTX 5080", 16e9, 960e9, 112.6e12, 225.1e12, _PCIE_5, 360, _BLACKWELL),
    "rtx-4090": GPU("RTX 4090", 24e9, 1008e9, 165.2e12, 330.3e12, _PCIE_4, 450, _ADA),
    "rtx-4080": GPU("RTX 4080", 16e9, 716.8e9, 97.5e12, 194.9e12, _PCIE_4, 320, _ADA),
    "rtx-3090": GPU("RTX 3090", 24e9, 936e9, 71e12, None, _PCIE_4, 350, _AMPERE),
    "rtx-3060": GPU(
        *("RTX 3060 12 GB", 12e9, 360e9, 25.5e12, None, _PCIE_4, 170),
        "NVIDIA GeForce RTX 3060 product page; FP16 from GA102's rate per tensor core: 112 x 128 FLOP x 1.777 GHz",
    ),
    "l40s": GPU("L40S", 48e9, 864e9, 362.05e12, 733e12, _PCIE_4, 350, "NVIDIA L40S data sheet"),
    "a100-80gb": GPU(
        *("A100 SXM 80 GB", 80e9, 2039e9, 312e12, None, _PCIE_4, 400), "NVIDIA A100 Tensor Core GPU data sheet"
    ),
    "h100-sxm": GPU(
        *("H100 SXM", 80e9, 3350e9, 989.5e12, 1979e12, _PCIE_5, 700),
        "NVIDIA H100 Tensor Core GPU data sheet; FLOP/s there with sparsity",
    ),
    "h200": GPU(
        *("H200 SXM", 141e9, 4800e9, 989.5e12, 1979e12, _PCIE_5, 700),
        "NVIDIA H200 Tensor Core GPU data sheet; FLOP/s there with sparsity",
    ),
    "b200": GPU(
        *("B200 SXM", 180e9, 8000e9, 2250e12, 4500e12, _PCIE_5, 1000),
        "NVIDIA DGX B200 data sheet, an eighth of the system; FLOP/s there with sparsity",
    ),
    "b300": GPU(
        *("B300 SXM", 288e9, 8000e9, 2250e12, 4500e12, _PCIE_5, 1100),
        "NVIDIA Blackwell Ultra data sheet (HGX B300, an eighth of the board); FLOP/s there with sparsity",
    ),
}


def find(name: str, option: str = "--gpu") -> GPU:
    """Raises `ConfigError` with the names there are."""
    gpu = GPUS.get(name.lower().replace(" ", "-"))
    if gpu is None:
        raise ConfigError(f"{option} {name}: known are {', '.join(GPUS)}")
    return gpu
