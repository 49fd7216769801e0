"""How long each part of a start took, from the process that begins to the model that serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds. The parts follow one another; what `total_s` has beyond them is waiting for one another."""

    total_s: float
    parts_s: Mapping[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts_s.items())
        return f"{self.total_s:.1f} s: {parts}"
