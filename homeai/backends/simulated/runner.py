"""A runner without a model: advances a VirtualClock by what a step would cost and draws made-up tokens."""

from __future__ import annotations

from dataclasses import dataclass

from homeai.clock import VirtualClock
from homeai.engine.runner import RunnerLimits
from homeai.request import Request, SampledToken
from homeai.scheduling.plan import KVOpKind, StepPlan, StepResult

SIMULATED_TOKEN = 7  # never an end token: lengths come from max_tokens


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step time in seconds; the defaults were measured with a 270M model on two CPU cores."""

    step_s: float = 0.014
    decode_token_s: float = 0.005
    prefill_token_s: float = 0.0019

    def predict(self, plan: StepPlan) -> float:
        return (
            self.step_s + plan.num_decode_tokens * self.decode_token_s + plan.num_prefill_tokens * self.prefill_token_s
        )


class SimulatedRunner:
    """Keeps the same books as a real cache and asserts that every plan agrees with them."""

    def __init__(self, limits: RunnerLimits, clock: VirtualClock, cost: CostModel | None = None) -> None:
        self._limits = limits
        self._clock = clock
        self._cost = cost or CostModel()
        self._live: set[str] = set()
        self._length: dict[int, int] = {}

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def num_cells_used(self) -> int:
        return sum(self._length.values())

    def length(self, seq_id: int) -> int:
        return self._length.get(seq_id, 0)

    def add(self, request: Request) -> None:
        self._live.add(request.request_id)

    def remove(self, request_id: str) -> None:
        self._live.discard(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        for op in plan.kv_ops:
            assert op.kind is KVOpKind.DROP, f"unknown op {op.kind}"
            self._length.pop(op.seq_id, None)
        forward_s = self._cost.predict(plan) if plan.chunks else 0.0
        self._clock.advance(forward_s)
        if self.num_cells_used + plan.num_tokens > self._limits.num_kv_cells:
            return StepResult([0] * len(plan.chunks), [None] * len(plan.chunks), forward_s, out_of_room=True)
        for chunk in plan.chunks:
            length = self.length(chunk.seq_id)
            assert chunk.request_id in self._live, f"{chunk.request_id} is not live"
            assert chunk.start == length, f"sequence {chunk.seq_id} holds {length} tokens, not {chunk.start}"
            self._length[chunk.seq_id] = length + chunk.num_tokens
        sampled = [SampledToken(SIMULATED_TOKEN) if c.num_outputs else None for c in plan.chunks]
        return StepResult([c.num_tokens for c in plan.chunks], sampled, forward_s)

    def close(self) -> None:
        self._live.clear()
