"""Runs step plans on llama.cpp: KV ops, `llama_decode` for all sequences, then one sampling pass."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from homeai.backends.llamacpp.binding import Model, supports_gpu
from homeai.backends.llamacpp.context import Batch, Context, ContextConfig
from homeai.backends.llamacpp.drafts import Drafter, StepCosts
from homeai.backends.llamacpp.fitting import ContextOf, fitted, measured, plan_of
from homeai.backends.llamacpp.ops import KVOperations
from homeai.backends.llamacpp.sequences import Layout, Sequences
from homeai.backends.llamacpp.tokens import TokenBuffer
from homeai.engine.runner import RunnerLimits
from homeai.errors import DeviceUnavailable, GrammarFailed
from homeai.hardware import MachineProbe
from homeai.memory_plan import Plan
from homeai.messages import EngineConfig
from homeai.model_sizes import StepSize
from homeai.request import Request, SampledToken, longest_request
from homeai.sampling.grammar import GrammarState
from homeai.sampling.grammars import Grammars
from homeai.sampling.row import Logits
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState
from homeai.scheduling.plan import Chunk, KVOpResult, StepPlan, StepResult

NO_ROOM = 1
TILE_TOKENS = 64  # queries for which llama.cpp's attention on a CPU goes over the cells together
NO_LOGITS: Logits = np.empty((0, 0), np.float32)
ALL_LAYERS = 9999
MAX_UBATCH_TOKENS = {"cpu": 256, "cuda": 512}  # tokens computed at a time: on a CPU 3 % faster than 512


class _Live:
    """What the runner keeps of one request."""

    __slots__ = ("drafter", "num_prompt_tokens", "sampler", "tokens")

    def __init__(self, request: Request, grammar: GrammarState | None, piece: Callable[[int], bytes]) -> None:
        self.num_prompt_tokens = request.num_prompt_tokens
        self.tokens = TokenBuffer(request.prompt_token_ids, room=64)
        self.sampler = SamplerState(request.sampling, request.prompt_token_ids, grammar, piece=piece)
        self.drafter: Drafter | None = None  # from the first step on that may have drafts
        for token_id in request.output_token_ids:
            self.append(token_id)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def append(self, token_id: int) -> None:
        self.tokens.append(token_id)
        self.sampler.observe(token_id)
        if self.drafter is not None:
            self.drafter.append(token_id)


class _Piece(NamedTuple):
    """A chunk that is computed, and the guesses behind it."""

    chunk: Chunk
    live: _Live
    drafts: list[int]

    @property
    def num_tokens(self) -> int:
        return self.chunk.num_tokens + len(self.drafts)

    @property
    def num_outputs(self) -> int:
        return self.chunk.num_outputs + len(self.drafts)

    @property
    def head(self) -> _Piece:
        """All but its last token, without logits."""
        chunk = self.chunk._replace(num_tokens=self.chunk.num_tokens - 1, num_outputs=0, num_drafts=0)
        return _Piece(chunk, self.live, [])

    @property
    def last(self) -> _Piece:
        """Its last token, and what follows from it."""
        start = self.chunk.start + self.chunk.num_tokens - 1
        return self._replace(chunk=self.chunk._replace(start=start, num_tokens=1))


class _Rows(NamedTuple):
    """A piece that was computed, and its logits: rows `first` … of `logits`, float32 [rows, n_vocab]."""

    piece: _Piece
    logits: Logits
    first: int


class LlamaCppRunner:
    """The `ModelRunner` of GGUF models. `config`: what was loaded; `notes`: where that is not what was asked for."""

    def __init__(
        self,
        model: Model,
        context: Context,
        layout: Layout,
        limits: RunnerLimits,
        *,
        device: str,
        kv_bytes: int,
        config: EngineConfig,
        notes: list[str],
    ) -> None:
        self.config = config
        self.notes = notes
        self.device = device
        self.model_bytes = model.size_bytes
        self.kv_bytes = kv_bytes
        self._model = model
        self._context = context
        self._sequences = Sequences(context, layout)
        self._operations = KVOperations(self._sequences)
        self._limits = limits
        self._batch = Batch(limits.max_num_batched_tokens)
        self._sampler = BatchSampler(model.vocab.n_tokens, limits.end_token_ids)
        self._costs = StepCosts()
        self._grammars = Grammars(model.vocab, limits.end_token_ids)
        self._started: dict[str, Future[GrammarState]] = {}  # of requests that are prepared and not added yet
        self._live: dict[str, _Live] = {}
        self._splits = device == "cpu" and not layout.is_partitioned

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    def warm_up(self) -> None:
        """Touch every weight once, so that the first request does not wait for the disk."""
        self._batch.clear()
        (ids,) = self._sequences.activate([0])
        self._batch.add(ids, 0, [max(self._model.vocab.bos, 0)], num_outputs=1)
        code = self._sequences.decode(self._batch, [(0, 1)])
        if code != 0:
            raise RuntimeError(f"the first llama_decode failed with code {code}: is there enough memory?")
        self._sequences.drop(0)

    def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
        if request.sampling.grammar is None:
            return True
        started = self._started[request.request_id] = self._grammars.start(request.sampling.grammar)
        if not started.done():
            started.add_done_callback(lambda _: on_prepared())
            return False
        return True

    def add(self, request: Request) -> None:
        started = self._started.pop(request.request_id, None)
        if started is None and request.sampling.grammar is not None:
            started = self._grammars.start(request.sampling.grammar)
        grammar = started.result() if started is not None else None
        piece = partial(self._model.vocab.piece, special=False)
        self._live[request.request_id] = _Live(request, grammar, piece)

    def remove(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        self._started.pop(request_id, None)

    def execute(self, plan: StepPlan) -> StepResult:
        started_at = time.perf_counter()
        op_results, failed = self._operations.execute(plan.kv_ops)
        kv_ops_s = time.perf_counter() - started_at if plan.kv_ops else 0.0
        chunks = [chunk for chunk in plan.chunks if chunk.seq_id not in failed]
        if not chunks:
            return _nothing_computed(plan, op_results, kv_ops_s)
        passes = self._passes(self._with_drafts(chunks))
        rows: dict[int, _Rows] = {}
        num_computed: Counter[int] = Counter()  # of each sequence
        started_at = time.perf_counter()
        for number, pieces in enumerate(passes, start=1):
            code = self._decode(pieces)
            if code == NO_ROOM and any(piece.drafts for piece in pieces):  # guesses may never be in anyone's way
                pieces = [piece._replace(drafts=[]) for piece in pieces]
                code = self._decode(pieces)
            if code == NO_ROOM:
                break
            if code != 0:
                raise RuntimeError(f"llama_decode failed with code {code} on {self._batch.num_tokens} tokens")
            rows |= self._rows(pieces, is_last=number == len(passes))
            num_computed.update({piece.chunk.seq_id: piece.chunk.num_tokens for piece in pieces})
        forward_s = time.perf_counter() - started_at
        failed_requests: dict[str, str] = {}
        if len(passes) == 1 and self._batch.num_tokens == self._batch.num_outputs:
            self._costs.observe(self._batch.num_tokens, forward_s)
        return StepResult(
            [num_computed[chunk.seq_id] for chunk in plan.chunks],
            self._draw(plan.chunks, rows, failed_requests),
            forward_s,
            out_of_room=code == NO_ROOM,
            kv_op_results=op_results,
            kv_ops_s=kv_ops_s,
            num_draft_tokens=sum(len(row.piece.drafts) for row in rows.values()),
            failed=failed_requests,
        )

    def close(self) -> None:
        self._live.clear()
        self._started.clear()
        self._grammars.close()
        self._context.close()
        self._model.close()

    # ---- the forward pass ------------------------------------------------------------------------

    def _passes(self, pieces: list[_Piece]) -> list[list[_Piece]]:
        """What is computed at once; the largest number of logits rows comes last.

        One pass for all, but for a CPU with one pool of cells: llama.cpp attends for 64 queries at a time there, to
        every cell that one of them needs. Rows of other sequences among a long prompt's make all of it as slow as a
        prompt over the whole pool (128 tokens beside 7 decodes: 328 ms at once, 190 ms one after the other). The last
        token of a prompt goes with the decodes: the output layer, which is most of a small model, is read once for all.
        """
        if not self._splits or sum(piece.num_tokens for piece in pieces) < TILE_TOKENS:
            return [pieces]
        prompts = [piece for piece in pieces if piece.chunk.num_tokens > 1]
        others = [piece for piece in pieces if piece.chunk.num_tokens == 1]
        if not others:
            return [prompts]
        others += [piece.last for piece in prompts if piece.num_outputs]
        return [[piece.head if piece.num_outputs else piece for piece in prompts], others] if prompts else [others]

    def _rows(self, pieces: Sequence[_Piece], *, is_last: bool) -> dict[int, _Rows]:
        """Where each piece's logits are, if it has any. The next pass overwrites llama.cpp's buffer: what it would is
        copied."""
        num_outputs = self._batch.num_outputs
        logits = self._context.logits(num_outputs) if num_outputs else NO_LOGITS
        if not is_last and num_outputs:
            logits = logits.copy()
        rows, first = {}, 0
        for piece in pieces:
            if piece.num_outputs:
                rows[piece.chunk.seq_id] = _Rows(piece, logits, first)
            first += piece.num_outputs
        return rows

    def _decode(self, pieces: Sequence[_Piece]) -> int:
        """llama_decode's code, when the device has computed what was asked of it."""
        self._batch.clear()
        ids = self._sequences.activate([piece.chunk.seq_id for piece in pieces])
        for (chunk, live, drafts), chunk_ids in zip(pieces, ids, strict=True):
            length = self._sequences.length(chunk.seq_id)
            assert chunk.start == length, f"sequence {chunk.seq_id} holds {length} tokens, not {chunk.start}"
            tokens = live.tokens.slice(chunk.start, chunk.num_tokens)
            self._batch.add(chunk_ids, chunk.start, tokens, num_outputs=chunk.num_outputs)
            if drafts:
                self._batch.add(chunk_ids, chunk.start + chunk.num_tokens, drafts, num_outputs=len(drafts))
        code = self._sequences.decode(self._batch, [(piece.chunk.seq_id, piece.num_tokens) for piece in pieces])
        self._work_out_grammars(pieces)
        self._context.synchronize()
        return code

    def _work_out_grammars(self, pieces: Sequence[_Piece]) -> None:
        """What each grammar allows next, while a GPU computes: `llama_decode` has only told it what to do."""
        for piece in pieces:
            grammar = piece.live.sampler.grammar
            if grammar is not None and piece.num_outputs:
                with contextlib.suppress(GrammarFailed):  # its draw finds the same
                    grammar.allowed()

    # ---- guesses ---------------------------------------------------------------------------------

    def _with_drafts(self, chunks: Sequence[Chunk]) -> list[_Piece]:
        pieces = [_Piece(chunk, self._live[chunk.request_id], []) for chunk in chunks]
        if not any(chunk.num_drafts for chunk in chunks):
            return pieces
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        num_rows = sum(chunk.num_outputs for chunk in chunks)
        num_drafts = 0
        for i, piece in enumerate(pieces):
            room = min(
                self._max_drafts(piece),
                self._context.num_outputs - num_rows - num_drafts,
                self._batch.capacity - num_tokens - num_drafts,
            )
            if room > 0:
                drafts = self._drafter(piece.live).propose(room, num_tokens + num_drafts, num_rows, self._costs)
                pieces[i] = piece._replace(drafts=drafts)
                num_drafts += len(drafts)
        return pieces

    def _max_drafts(self, piece: _Piece) -> int:
        """None behind the request's last token: one is drawn in any case."""
        chunk, live, _ = piece
        if not chunk.num_outputs:
            return 0
        num_outputs_left = live.sampler.params.max_tokens - live.num_output_tokens
        return min(chunk.num_drafts, num_outputs_left - 1, self._limits.max_model_len - len(live.tokens) - 1)

    def _drafter(self, live: _Live) -> Drafter:
        if live.drafter is None:
            live.drafter = Drafter(live.tokens.slice(0, len(live.tokens)).tolist())
        return live.drafter

    # ---- draws -----------------------------------------------------------------------------------

    def _draw(
        self, chunks: Sequence[Chunk], rows: Mapping[int, _Rows], failed: dict[str, str]
    ) -> Iterator[list[SampledToken]]:
        """Each chunk's tokens when they are asked for, out of the logits of the last decode."""
        for chunk in chunks:
            yield self._draw_piece(rows[chunk.seq_id], failed) if chunk.seq_id in rows else []

    def _draw_piece(self, rows: _Rows, failed: dict[str, str]) -> list[SampledToken]:
        """One token, and one more for each guess that was right. The cache keeps what was right."""
        (chunk, live, drafts), logits, first = rows
        tokens: list[SampledToken] = []
        try:
            for row in range(first, first + 1 + len(drafts)):
                token = self._sampler.draw(logits, row, live.sampler, live.num_output_tokens)
                is_end = self._is_end(live, token.token_id)
                live.append(token.token_id)
                tokens.append(token)
                if is_end or len(tokens) > len(drafts) or drafts[len(tokens) - 1] != token.token_id:
                    break
        except GrammarFailed as error:
            failed[chunk.request_id] = str(error)
            tokens = []
        if drafts:
            num_right = max(0, len(tokens) - 1)
            is_cut = self._sequences.truncate(chunk.seq_id, chunk.start + chunk.num_tokens + num_right)
            assert is_cut, f"the guesses in sequence {chunk.seq_id} cannot be taken back"
        return tokens

    def _is_end(self, live: _Live, token_id: int) -> bool:
        params = live.sampler.params
        must_go_on = params.ignore_eos or live.num_output_tokens < params.min_tokens
        return token_id in self._limits.end_token_ids and not (must_go_on and params.grammar is None)


def _nothing_computed(plan: StepPlan, op_results: list[KVOpResult], kv_ops_s: float) -> StepResult:
    num_chunks = len(plan.chunks)
    return StepResult([0] * num_chunks, [()] * num_chunks, 0.0, kv_op_results=op_results, kv_ops_s=kv_ops_s)


def load(config: EngineConfig, on_progress: Callable[[float], None]) -> LlamaCppRunner:
    """Read the weights and make the context, if they fit. Raises `ModelLoadError`, `DeviceUnavailable`; anything it
    took is freed then."""
    device = resolve_device(config.device)
    config, plan = fitted(config, device, _step(config, device), _contexts(device))
    layers = 0 if device == "cpu" else (config.n_gpu_layers if config.n_gpu_layers >= 0 else ALL_LAYERS)
    model = Model(Path(config.model_path), n_gpu_layers=layers, on_progress=on_progress)
    try:
        layout = _layout(config, model)
        context_config = _context_config(config, model, device)
        limits = _limits(config, model, layout, context_config)
        context = Context(model, context_config)
    except BaseException:
        model.close()
        raise
    kv_bytes = limits.num_kv_cells * limits.kv_bytes_per_token
    notes = list(plan.changes)
    return LlamaCppRunner(model, context, layout, limits, device=device, kv_bytes=kv_bytes, config=config, notes=notes)


def preview(config: EngineConfig) -> Plan:
    """What `load` would do now, with exact sizes. Raises what it would."""
    device = resolve_device(config.device)
    rooms = measured(device, MachineProbe())
    return plan_of(config, device, rooms, _step(config, device), _contexts(device), exactly=True)


def _step(config: EngineConfig, device: str) -> StepSize:
    return StepSize(config.max_num_seqs + config.max_drafts, MAX_UBATCH_TOKENS[device])


def _contexts(device: str) -> ContextOf:
    return lambda config, model: _context_config(config, model, device)


def _layout(config: EngineConfig, model: Model) -> Layout:
    return Layout.of(
        model,
        max_num_seqs=config.max_num_seqs,
        num_cached_seqs=config.num_cached_seqs,
        swa_full=config.swa_full,
        kv_layout=config.kv_layout,
    )


def _context_config(config: EngineConfig, model: Model, device: str) -> ContextConfig:
    layout = _layout(config, model)
    # without chunking one whole prompt must fit a step, whatever the budget
    prompt = 0 if config.chunked_prefill else _max_model_len(config, model)
    num_cells = config.num_cells_per_request
    return ContextConfig(
        num_kv_cells=num_cells * config.max_num_seqs if layout.is_partitioned else num_cells,
        num_ids=layout.num_ids,
        num_outputs=config.max_num_seqs + (config.max_drafts if layout.can_share else 0),
        max_num_batched_tokens=config.max_num_batched_tokens + prompt,
        max_ubatch_tokens=MAX_UBATCH_TOKENS[device],
        num_threads=config.num_threads,
        flash_attention=config.flash_attention,
        swa_full=config.swa_full,
        kv_type=config.kv_type,
        is_partitioned=layout.is_partitioned,
    )


def _max_model_len(config: EngineConfig, model: Model) -> int:
    return longest_request(config.max_model_len, model.n_ctx_train, config.num_cells_per_request)


def _limits(config: EngineConfig, model: Model, layout: Layout, context: ContextConfig) -> RunnerLimits:
    return RunnerLimits(
        num_kv_cells=context.num_kv_cells,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=context.max_num_batched_tokens,
        max_model_len=_max_model_len(config, model),
        end_token_ids=model.vocab.end_token_ids(),
        num_seqs=layout.num_seqs,
        is_partitioned=layout.is_partitioned,
        can_share=layout.can_share,
        kv_bytes_per_token=model.kv_bytes_per_token(config.kv_type),
        max_drafts=config.max_drafts if layout.can_share else 0,
    )


def resolve_device(wanted: str) -> str:
    """`auto` is decided once, here, by what this build sees; `cuda` without a GPU is an error, never a slow CPU run."""
    if wanted == "cpu":
        return "cpu"
    if supports_gpu():
        return "cuda"
    if wanted == "cuda":
        raise DeviceUnavailable(
            "model.device is cuda, but llama.cpp sees no GPU (was it built with CUDA? is the driver up?)"
        )
    return "cpu"
