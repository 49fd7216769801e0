"""How long a step takes, from steps that were measured. Fitting lives in `cost_fit.py`, estimates in `plan/`.

A step without prefill costs what its rows cost, measured count by count (five rows may cost more than eight). One with
prefill costs a constant and so much per token, and another constant where it draws any token: the output matrix is most
of a small model's weights. Beside running streams a prompt's tokens were found to cost more, the more streams. To both
comes attention: so much per token and token that it looks at, and, because on the CPU every row passes over the pool up
to its highest used cell, so much per token and cell in use. A request that arrives meanwhile is read by the front end
on the same cores.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from homeai.errors import ConfigError
from homeai.scheduling.plan import KVOp, KVOpKind, StepPlan


class StepShape(NamedTuple):
    """What of a step decides its time.

    num_decode_tokens: rows of running streams, drafts included. num_context_tokens: tokens attended to, summed over
    the requests in the step; num_attended_tokens: over its tokens, drafts left out; num_near_tokens: of those, what a
    usual sliding window reaches. kv_used: cells in use after the step, whoever's they are. num_outputs: requests that
    get a token; none in the midst of a prompt.
    """

    num_prefill_tokens: int
    num_decode_tokens: int
    num_context_tokens: int
    num_attended_tokens: int
    kv_used: int
    num_outputs: int = 1
    num_near_tokens: int = 0

    @classmethod
    def of(cls, plan: StepPlan, kv_used: int) -> StepShape:
        num_drafts = sum(chunk.num_drafts for chunk in plan.chunks)
        return cls(
            plan.num_prefill_tokens,
            plan.num_decode_tokens + num_drafts,
            plan.num_context_tokens,
            plan.num_attended_tokens,
            kv_used,
            plan.num_outputs,
            plan.num_near_tokens,
        )

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + self.num_decode_tokens


class StepCost(Protocol):
    """A model of one machine with one language model on it."""

    @property
    def label(self) -> str:
        """What it describes, and whether that is measured or an estimate. Shown with every result."""
        ...

    @property
    def arrival_s(self) -> float:
        """What the front end takes to read a request, about: it comes to the engine so much later, and a step that runs
        meanwhile takes so much longer, where they share the cores."""
        ...

    def step_s(self, shape: StepShape) -> float: ...

    def kv_op_s(self, op: KVOp) -> float: ...


class FitError(msgspec.Struct, frozen=True):
    """How far the fitted times are from the measured ones. `total` is signed: predicted over measured, less one."""

    num_steps: int
    total: float
    median: float
    p95: float

    def __str__(self) -> str:
        return (
            f"{self.num_steps} steps, off by {self.median:.0%} at the median and {self.p95:.0%} at p95, "
            f"{self.total:+.1%} in total"
        )


class MeasuredCost(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `decode_s` are points (rows, time) of steps without prefill, by rows; between them a line.

    …_cell_s: per token and cell in use. …_attended_s: per token and token that it looks at; mixed_near_s: the same for
    what is near, where most layers look no farther.
    """

    source: str
    decode_s: list[tuple[int, float]]
    decode_cell_s: float
    decode_attended_s: float = 0.0
    mixed_step_s: float
    mixed_output_s: float = 0.0  # of a step that draws any token
    mixed_prefill_s: float  # per token
    mixed_decode_s: float  # per row
    mixed_cell_s: float
    mixed_attended_s: float = 0.0
    mixed_near_s: float = 0.0
    mixed_pair_s: float = 0.0  # per prefill token and row
    save_token_s: float = 0.0
    restore_token_s: float = 0.0
    arrival_s: float = 0.0
    error: FitError | None = None

    @property
    def label(self) -> str:
        return f"{self.source} (measured{f': {self.error}' if self.error else ''})"

    def step_s(self, shape: StepShape) -> float:
        if not shape.num_prefill_tokens:
            rows = shape.num_decode_tokens
            return (
                _interpolated(self.decode_s, rows)
                + self.decode_cell_s * rows * shape.kv_used
                + self.decode_attended_s * shape.num_attended_tokens
            )
        return (
            self.mixed_step_s
            + self.mixed_output_s * (shape.num_outputs > 0)
            + self.mixed_prefill_s * shape.num_prefill_tokens
            + self.mixed_decode_s * shape.num_decode_tokens
            + self.mixed_cell_s * shape.num_tokens * shape.kv_used
            + self.mixed_attended_s * shape.num_attended_tokens
            + self.mixed_near_s * shape.num_near_tokens
            + self.mixed_pair_s * shape.num_prefill_tokens * shape.num_decode_tokens
        )

    def kv_op_s(self, op: KVOp) -> float:
        match op.kind:
            case KVOpKind.SAVE:
                return self.save_token_s * op.length
            case KVOpKind.RESTORE:
                return self.restore_token_s * op.length
            case _:
                return 0.0

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def load(cls, path: Path) -> MeasuredCost:
        """Raises `ConfigError`."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{str(path)!r} does not hold a fitted cost model: {error}") from None


def _interpolated(points: Sequence[tuple[int, float]], x: int) -> float:
    """On the line through the points beside `x`; beyond the ends on the outermost line, never below zero."""
    if len(points) == 1:
        return points[0][1]
    right = min(max(1, bisect_left(points, (x, 0.0))), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


# A 270M model (Q4_K_M) on two CPU cores with AVX-512 VNNI and the kernels of scripts/, one unified pool of cells.
SMALL_CPU = MeasuredCost(
    source="gemma-3-270m Q4_K_M on 2 CPU cores",
    decode_s=[(1, 0.0098), (2, 0.0111), (3, 0.0122), (4, 0.013), (6, 0.0153), (8, 0.0173), (12, 0.0224), (16, 0.0287)],
    decode_cell_s=2.9e-8,
    decode_attended_s=1.3e-6,
    mixed_step_s=0.0091,
    mixed_output_s=0.0051,
    mixed_prefill_s=0.0003,
    mixed_decode_s=0.00044,
    mixed_cell_s=1.1e-7,
    mixed_attended_s=4.7e-8,
    mixed_near_s=9.6e-7,
    mixed_pair_s=6.3e-6,
    save_token_s=0.006 / 1400,
    restore_token_s=0.0016 / 815,
    arrival_s=0.0077,
)
