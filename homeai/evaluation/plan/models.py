"""Models by size, for those who have no file yet: published configurations, with the bytes of the GGUF files."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from homeai.errors import ConfigError
from homeai.evaluation.plan.architecture import Architecture, Numbers, of_numbers

_3B: Final = Numbers(layers=28, hidden=3072, heads=24, kv_heads=8, head_dim=128, ff=8192, vocab=128_256, tied=True)
_8B: Final = Numbers(layers=32, hidden=4096, heads=32, kv_heads=8, ff=14_336, vocab=128_256)
_14B: Final = Numbers(layers=40, hidden=5120, heads=40, kv_heads=8, ff=17_408, vocab=151_936)
_32B: Final = Numbers(layers=64, hidden=5120, heads=64, kv_heads=8, head_dim=128, ff=25_600, vocab=151_936)
_30B_A3B: Final = Numbers(
    layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, ff=768, experts=128, experts_used=8, vocab=151_936
)
_70B: Final = Numbers(layers=80, hidden=8192, heads=64, kv_heads=8, ff=28_672, vocab=128_256)


def _published(name: str, numbers: Numbers, weight_bytes: float) -> Architecture:
    num_parameters = of_numbers(numbers).num_parameters
    return of_numbers(replace(numbers, bytes_per_weight=weight_bytes / num_parameters), name)


MODELS: Final = {
    "3b-q4": _published("3B Q4_K_M", _3B, 2.0e9),  # Llama 3.2
    "8b-q4": _published("8B Q4_K_M", _8B, 4.9e9),  # Llama 3.1
    "8b-q8": _published("8B Q8_0", _8B, 8.5e9),
    "14b-q4": _published("14B Q4_K_M", _14B, 9.0e9),  # Qwen 3
    "30b-a3b-q4": _published("30B-A3B Q4_K_M", _30B_A3B, 18.6e9),  # Qwen 3, 8 of 128 experts
    "32b-q4": _published("32B Q4_K_M", _32B, 19.8e9),
    "70b-q4": _published("70B Q4_K_M", _70B, 42.5e9),  # Llama 3.3
}


def find(name: str, option: str = "--model-size") -> Architecture:
    """Raises `ConfigError` with the names there are."""
    if name not in MODELS:
        raise ConfigError(f"{option} {name}: known are {', '.join(MODELS)}")
    return MODELS[name]
