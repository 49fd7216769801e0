"""A runner without a model: advances a VirtualClock by what a step would cost and draws made-up tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from homeai.clock import VirtualClock
from homeai.engine.runner import RunnerLimits
from homeai.request import Request, SampledToken
from homeai.scheduling.plan import Chunk, KVOp, KVOpKind, KVOpResult, StepPlan, StepResult

FIRST_TOKEN = 1_000_000  # beyond any vocabulary: never an end token, lengths come from max_tokens


class CostModel(Protocol):
    def predict(self, plan: StepPlan, num_cells: int) -> float:
        """Seconds that the step takes with so many cells in use."""
        ...


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Step time in seconds; the defaults were measured with a 270M model on two CPU cores."""

    step_s: float = 0.014
    decode_token_s: float = 0.005
    prefill_token_s: float = 0.0019

    def predict(self, plan: StepPlan, num_cells: int) -> float:
        return (
            self.step_s + plan.num_decode_tokens * self.decode_token_s + plan.num_prefill_tokens * self.prefill_token_s
        )


class _Held:
    """What one sequence holds: its tokens, and the cells that they lie in (shared ones are in several sequences)."""

    __slots__ = ("cells", "owner", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.cells: list[int] = []
        self.owner: str | None = None  # the request whose tokens they were found to be


class SimulatedRunner:
    """Keeps the same books as a real cache, token by token, and asserts that every plan agrees with them.

    The n-th output of every request is one and the same made-up token, so that conversations can be written down
    beforehand: see `output_token`.
    """

    def __init__(self, limits: RunnerLimits, clock: VirtualClock, cost: CostModel | None = None) -> None:
        self._limits = limits
        self._clock = clock
        self._cost = cost or LinearCost()
        self._live: dict[str, Request] = {}
        self._num_drawn: dict[str, int] = {}
        self._held: dict[int, _Held] = {}
        self._uses: dict[int, int] = {}  # cell → sequences that it is part of
        self._next_cell = 0
        self._saved: dict[int, list[int]] = {}

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def num_cells_used(self) -> int:
        return len(self._uses)

    @property
    def num_saved(self) -> int:
        return len(self._saved)

    def length(self, seq_id: int) -> int:
        return len(self._held[seq_id].tokens) if seq_id in self._held else 0

    def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
        return True

    def add(self, request: Request) -> None:
        assert request.sampling.grammar is None, "made-up tokens follow no grammar"
        self._live[request.request_id] = request
        self._num_drawn[request.request_id] = request.num_output_tokens

    def remove(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        self._num_drawn.pop(request_id, None)

    def execute(self, plan: StepPlan) -> StepResult:
        op_results = [self._run(op) for op in plan.kv_ops]
        forward_s = self._cost.predict(plan, self.num_cells_used) if plan.chunks else 0.0
        self._clock.advance(forward_s)
        if self.num_cells_used + plan.num_tokens > self._limits.num_kv_cells:
            nothing: list[tuple[SampledToken, ...]] = [()] * len(plan.chunks)
            return StepResult([0] * len(plan.chunks), nothing, forward_s, out_of_room=True, kv_op_results=op_results)
        for chunk in plan.chunks:
            self._compute(chunk)
        sampled = [self._draw(chunk) for chunk in plan.chunks]
        return StepResult([c.num_tokens for c in plan.chunks], sampled, forward_s, kv_op_results=op_results)

    def _run(self, op: KVOp) -> KVOpResult:
        match op.kind:
            case KVOpKind.DROP:
                self._cut(op.seq_id, 0)
            case KVOpKind.TRUNCATE:
                assert self.length(op.seq_id) >= op.length, f"{op}: it holds {self.length(op.seq_id)} tokens"
                self._cut(op.seq_id, op.length)
            case KVOpKind.SHARE:
                assert self.length(op.other) >= op.length, f"{op}: the other holds {self.length(op.other)} tokens"
                other = self._held[op.other]
                self._append(
                    op.seq_id, other.tokens[: op.length], None if self._is_copied else other.cells[: op.length]
                )
            case KVOpKind.SAVE:
                assert self.length(op.seq_id) == op.length, f"{op}: it holds {self.length(op.seq_id)} tokens"
                self._saved[op.other] = list(self._held[op.seq_id].tokens)
                return KVOpResult(num_bytes=op.length * self._limits.kv_bytes_per_token)
            case KVOpKind.RESTORE:
                assert len(self._saved[op.other]) == op.length, f"{op}: {len(self._saved[op.other])} tokens were saved"
                self._append(op.seq_id, self._saved[op.other])
                return KVOpResult(num_bytes=op.length * self._limits.kv_bytes_per_token)
            case KVOpKind.FORGET:
                del self._saved[op.other]
        return KVOpResult()

    @property
    def _is_copied(self) -> bool:
        return self._limits.is_partitioned

    def _append(self, seq_id: int, tokens: list[int], cells: list[int] | None = None) -> None:
        assert not self.length(seq_id), f"sequence {seq_id} is not empty"
        held = self._held[seq_id] = _Held()
        self._extend(held, tokens, cells)

    def _extend(self, held: _Held, tokens: list[int], cells: list[int] | None = None) -> None:
        if cells is None:
            cells = list(range(self._next_cell, self._next_cell + len(tokens)))
            self._next_cell += len(tokens)
        for cell in cells:
            self._uses[cell] = self._uses.get(cell, 0) + 1
        held.tokens += tokens
        held.cells += cells

    def _cut(self, seq_id: int, length: int) -> None:
        held = self._held.get(seq_id)
        if held is None:
            return
        for cell in held.cells[length:]:
            self._uses[cell] -= 1
            if not self._uses[cell]:
                del self._uses[cell]
        del held.cells[length:], held.tokens[length:]
        held.owner = None
        if not length:
            del self._held[seq_id]

    def _compute(self, chunk: Chunk) -> None:
        assert chunk.request_id in self._live, f"{chunk.request_id} is not live"
        request, held = self._live[chunk.request_id], self._held.setdefault(chunk.seq_id, _Held())
        length = len(held.tokens)
        assert chunk.start == length, f"sequence {chunk.seq_id} holds {length} tokens, not {chunk.start}"
        if held.owner != chunk.request_id:
            assert held.tokens == request.token_ids(0, length), f"sequence {chunk.seq_id} holds another one's tokens"
            held.owner = chunk.request_id
        tokens = request.token_ids(chunk.start, chunk.start + chunk.num_tokens)
        assert len(tokens) == chunk.num_tokens, f"{chunk} goes beyond the {request.num_tokens} tokens there are"
        self._extend(held, tokens)

    def _draw(self, chunk: Chunk) -> tuple[SampledToken, ...]:
        if not chunk.num_outputs:
            return ()
        index = self._num_drawn[chunk.request_id]
        self._num_drawn[chunk.request_id] += 1
        return (SampledToken(output_token(index)),)

    def close(self) -> None:
        self._live.clear()


def output_token(index: int) -> int:
    """What the simulated model writes as its token `index`."""
    return FIRST_TOKEN + index
