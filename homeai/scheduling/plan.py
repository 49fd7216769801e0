"""The contract between scheduler and runner: what one step computes, and what came of it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from homeai.request import FinishReason, Mode, SampledToken


class Chunk(NamedTuple):
    """A request's share of one step: compute tokens [start, start + num_tokens) into `seq_id`.

    `num_outputs` is 1 when the last of them reaches the end of the request's tokens and a token is to be
    drawn from its logits, else 0.
    """

    request_id: str
    seq_id: int
    start: int
    num_tokens: int
    num_outputs: int


class KVOpKind(enum.StrEnum):
    DROP = "drop"  # forget all of seq_id


class KVOp(NamedTuple):
    """Ordered, committed before the step's tokens, and kept even when those found no room."""

    kind: KVOpKind
    seq_id: int


@dataclass(slots=True)
class StepPlan:
    """What the runner executes. `admitted`: requests that are in a batch for the first time."""

    mode: Mode = Mode.CONTINUOUS
    kv_ops: list[KVOp] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_decode_tokens + self.num_prefill_tokens


@dataclass(slots=True)
class StepResult:
    """What really happened, chunk by chunk (same order as the plan).

    num_computed: tokens of each chunk now in the cache; less than asked only when `out_of_room`.
    sampled: the drawn token of each chunk, None where none was asked or reached; may be drawn as it is read
      (once, before the next step), so that a token is on its way while the next one is drawn.
    forward_s: seconds the model took; the rest of the step is ours.
    """

    num_computed: list[int]
    sampled: Iterable[SampledToken | None]
    forward_s: float
    out_of_room: bool = False


class RequestOutput(NamedTuple):
    """What one request gained in one step. `output_index` is the absolute index of `token` among its outputs."""

    request_id: str
    output_index: int
    token: SampledToken | None
    finish_reason: FinishReason | None = None
