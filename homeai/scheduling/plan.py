"""The contract between scheduler and runner: what one step computes, and what came of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from homeai.request import FinishReason, Mode, SampledToken

NEAR_TOKENS: Final = 512  # of Gemma's small models; its larger ones have windows of 1024


class Chunk(NamedTuple):
    """A request's share of one step: compute tokens [start, start + num_tokens) into `seq_id`.

    `num_outputs` is 1 when the last of them reaches the end of the request's tokens and a token is to be
    drawn from its logits, else 0. Behind that last token the runner may guess up to `num_drafts` more, compute
    them in the same pass and keep those that it would have drawn anyway (speculation; the draws do not change).
    """

    request_id: str
    seq_id: int
    start: int
    num_tokens: int
    num_outputs: int
    num_drafts: int = 0

    @property
    def num_context_tokens(self) -> int:
        """Of its request, with its own."""
        return self.start + self.num_tokens

    @property
    def num_attended_tokens(self) -> int:
        """What each of its tokens looks at, itself too, summed. Drafts are left out."""
        return _attended(self.start, self.num_tokens)

    @property
    def num_near_tokens(self) -> int:
        """Of those, the ones that are no farther away than a usual sliding window reaches."""
        num_first = min(self.num_tokens, max(0, NEAR_TOKENS - self.start))  # they see everything
        return _attended(self.start, num_first) + (self.num_tokens - num_first) * NEAR_TOKENS


def _attended(start: int, num_tokens: int) -> int:
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


class KVOpKind(enum.StrEnum):
    DROP = "drop"  # forget all of seq_id
    TRUNCATE = "truncate"  # keep the first `length` tokens of seq_id
    SHARE = "share"  # the empty seq_id begins with the first `length` tokens of `other`
    SAVE = "save"  # copy the first `length` tokens of seq_id to host memory, as `other`
    RESTORE = "restore"  # the empty seq_id becomes what `other` in host memory holds, `length` tokens
    FORGET = "forget"  # free `other` in host memory


class KVOp(NamedTuple):
    """Ordered, committed before the step's tokens, and kept even when those found no room.

    `seq_id` is the sequence that changes (SAVE: that is read; FORGET: unused). `other` is a sequence (SHARE) or
    the scheduler's own number for a saved one.
    """

    kind: KVOpKind
    seq_id: int
    other: int = -1
    length: int = 0


class KVOpResult(NamedTuple):
    """`ok` False: SHARE, TRUNCATE or RESTORE could not be done and left `seq_id` empty; SAVE stored nothing.

    `num_bytes` that moved between device and host.
    """

    ok: bool = True
    num_bytes: int = 0


@dataclass(slots=True)
class StepPlan:
    """What the runner executes. `admitted`: requests that are in a batch for the first time; `resumed`: again.

    `num_idle_rows`: requests that the batch had room for while others waited.
    `wake_at`: nothing to compute before that time, unless something arrives (mode `window`).
    """

    mode: Mode = Mode.CONTINUOUS
    kv_ops: list[KVOp] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0
    predicted_s: float = 0.0
    num_idle_rows: int = 0
    wake_at: float | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_decode_tokens + self.num_prefill_tokens

    @property
    def num_outputs(self) -> int:
        return sum(chunk.num_outputs for chunk in self.chunks)

    @property
    def num_context_tokens(self) -> int:
        return sum(chunk.num_context_tokens for chunk in self.chunks)

    @property
    def num_attended_tokens(self) -> int:
        return sum(chunk.num_attended_tokens for chunk in self.chunks)

    @property
    def num_near_tokens(self) -> int:
        return sum(chunk.num_near_tokens for chunk in self.chunks)


@dataclass(slots=True)
class StepResult:
    """What really happened, chunk by chunk and op by op (same order as the plan).

    num_computed: of each chunk's own tokens, how many are now in the cache; less than asked only when
      `out_of_room` or when a KV op on its sequence failed (then 0).
    sampled: the drawn tokens of each chunk, empty where none was asked or reached. More than one where drafts
      were accepted: all but the last are in the cache then.
    forward_s: seconds the model took; the rest of the step is ours.
    failed: requests whose next token cannot be drawn, and why.
    """

    num_computed: list[int]
    sampled: Sequence[Sequence[SampledToken]]
    forward_s: float
    out_of_room: bool = False
    kv_op_results: list[KVOpResult] = field(default_factory=list)
    kv_ops_s: float = 0.0  # seconds that the KV ops took
    num_draft_tokens: int = 0  # guessed and computed, accepted or not
    failed: dict[str, str] = field(default_factory=dict)


class RequestOutput(NamedTuple):
    """What one request gained in one step. `output_index` is the absolute index of `token` among its outputs."""

    request_id: str
    output_index: int
    token: SampledToken | None
    finish_reason: FinishReason | None = None
