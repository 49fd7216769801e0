"""The seam between engine and backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from homeai.messages import EngineConfig
from homeai.request import Request
from homeai.scheduling.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What a backend can do; the scheduler needs nothing else of it.

    num_kv_cells: tokens that the KV cache holds, all sequences together.
    max_num_seqs: requests in one batch.
    max_num_batched_tokens: tokens of one step.
    max_model_len: tokens of one request, prompt and output together.
    num_seqs: sequences that the cache can hold, running and kept for reuse together; ids are 0 … num_seqs - 1.
    is_partitioned: every sequence has num_kv_cells / num_seqs cells of its own; else all share one pool.
    can_share: the head of a sequence can be shared with another one, and its tail be cut off.
    can_save: a sequence can be copied to host memory and back.
    kv_bytes_per_token: about what a token takes, on the device or saved.
    max_drafts: tokens that may be guessed behind a decode; 0 where they cannot be taken back.
    """

    num_kv_cells: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    end_token_ids: frozenset[int]
    num_seqs: int
    is_partitioned: bool = False
    can_share: bool = True
    can_save: bool = True
    kv_bytes_per_token: int = 0
    max_drafts: int = 0


class ModelRunner(Protocol):
    """Owns token buffers, KV cache and sampler state; executes plans. One thread calls it."""

    @property
    def limits(self) -> RunnerLimits: ...

    def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
        """Whether `add` may come now. Else there is work to do beside the loop first, and `on_prepared` is called
        when it is done or has failed, from another thread."""
        ...

    def add(self, request: Request) -> None:
        """Take the request's prompt and sampling parameters, before its first chunk. Does what `prepare` was not
        asked for. Raises `GrammarFailed`, and `AssertionError` for what this backend cannot do."""
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


class LoadedRunner(ModelRunner, Protocol):
    """What a backend's `load` returns: a runner that says what it loaded.

    config: the settings in force; notes: where that is not what was asked for, a sentence each. device: cuda or cpu.
    """

    @property
    def config(self) -> EngineConfig: ...

    @property
    def notes(self) -> list[str]: ...

    @property
    def device(self) -> str: ...

    @property
    def model_bytes(self) -> int: ...

    @property
    def kv_bytes(self) -> int: ...

    def warm_up(self) -> None:
        """Touch every weight once, so that the first request does not wait for it."""
        ...


Load = Callable[[EngineConfig, Callable[[float], None]], LoadedRunner]
"""Of a backend; the second argument is told the part of the weights that is read, 0 … 1."""
