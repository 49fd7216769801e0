"""The seam between engine and backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from homeai.request import Request
from homeai.scheduling.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What a backend can do; the scheduler needs nothing else of it.

    num_kv_cells: tokens that the KV cache holds, all sequences together.
    max_num_seqs: sequences alive at once.
    max_num_batched_tokens: tokens of one step.
    max_model_len: tokens of one request, prompt and output together.
    """

    num_kv_cells: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    end_token_ids: frozenset[int]


class ModelRunner(Protocol):
    """Owns token buffers, KV cache and sampler state; executes plans. One thread calls it."""

    @property
    def limits(self) -> RunnerLimits: ...

    def add(self, request: Request) -> None:
        """Take the request's prompt and sampling parameters, before its first chunk."""
        ...

    def remove(self, request_id: str) -> None:
        """Forget buffers and sampler state (KV is dropped by a `KVOp`)."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run the KV ops in order, then all chunks in one forward pass; draw the tokens asked for.

        Out of room is a result, not an error. Any exception means that the engine is broken.
        """
        ...

    def close(self) -> None: ...
