"""What a cost model says people would feel: tokens per second and the first token's time, at 1 … N streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from homeai.evaluation.cost_model import StepCost, StepShape

STEP_TOKENS: Final = 512  # of prompts in one step, as the engine does when nobody streams


@dataclass(frozen=True, slots=True)
class Speed:
    """ttft_s: of one prompt while nobody else asks. last_ttft_s: of the last of `num_streams` that ask at once."""

    num_streams: int
    step_s: float
    ttft_s: float
    last_ttft_s: float

    @property
    def stream_tok_s(self) -> float:
        return 1 / self.step_s

    @property
    def total_tok_s(self) -> float:
        return self.num_streams / self.step_s


def speeds(cost: StepCost, streams: Sequence[int], context: int, prompt: int) -> list[Speed]:
    """context: tokens of each stream while it decodes. prompt: tokens that are computed before a first token."""
    prompt_s = prefill_s(cost, prompt)
    return [
        Speed(num, cost.step_s(StepShape(0, num, *[num * context] * 3)), prompt_s, num * prompt_s) for num in streams
    ]


def prefill_s(cost: StepCost, num_tokens: int) -> float:
    return sum(cost.step_s(shape) for shape in _chunks(num_tokens))


def counts(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    return sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})


def _chunks(num_tokens: int) -> Iterator[StepShape]:
    for start in range(0, num_tokens, STEP_TOKENS):
        size = min(STEP_TOKENS, num_tokens - start)
        yield StepShape(size, 0, start + size, size * start + size * (size + 1) // 2, start + size)
