"""Runs step plans on llama.cpp: KV ops, `llama_decode` for all sequences, then one sampling pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from homeai.backends.llamacpp.binding import Model, supports_gpu
from homeai.backends.llamacpp.context import NO_ROOM, Batch, Context, ContextConfig
from homeai.backends.llamacpp.fitting import ContextOf, fitted, measured, plan_of
from homeai.backends.llamacpp.native_sampler import NativeSampler
from homeai.backends.llamacpp.ops import KVOperations
from homeai.backends.llamacpp.padding import Padding
from homeai.backends.llamacpp.sequences import Layout, Sequences
from homeai.backends.shared.guesses import Guesses
from homeai.backends.shared.live import LiveRequests
from homeai.backends.shared.work import Work, work_out_grammars
from homeai.engine.runner import RunnerLimits
from homeai.errors import DeviceUnavailable, GrammarFailed
from homeai.hardware import MachineProbe
from homeai.memory_plan import Plan
from homeai.messages import EngineConfig
from homeai.model_sizes import StepSize
from homeai.request import Request, SampledToken, longest_request
from homeai.sampling.grammars import Grammars
from homeai.sampling.row import Logits
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState
from homeai.scheduling.plan import Chunk, KVOpResult, StepPlan, StepResult

TILE_TOKENS = 64  # queries for which llama.cpp's attention on a CPU goes over the cells together
NO_LOGITS: Logits = np.empty((0, 0), np.float32)
ALL_LAYERS = 9999
MAX_UBATCH_TOKENS = {"cpu": 256, "cuda": 512}  # tokens computed at a time: on a CPU 3 % faster than 512


class _Rows(NamedTuple):
    """Computed work and its logits: rows `first` … of `logits`, float32 [rows, n_vocab]."""

    work: Work
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
        self._native_sampler = NativeSampler(self._sampler) if NativeSampler.is_built_in() else None
        self._guesses = Guesses(
            max_tokens=self._batch.capacity, max_outputs=context.num_outputs, max_model_len=limits.max_model_len
        )
        vocab = model.vocab
        self._live = LiveRequests(Grammars(vocab, limits.end_token_ids), partial(vocab.piece, special=False))
        self._splits = device == "cpu" and not layout.is_partitioned
        self._padding = Padding(min(context.num_outputs, self._batch.capacity) if device == "cpu" else 0)

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
        return self._live.prepare(request, on_prepared)

    def add(self, request: Request) -> None:
        self._live.add(request)

    def remove(self, request_id: str) -> None:
        self._live.remove(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        started_at = time.perf_counter()
        op_results, failed = self._operations.execute(plan.kv_ops)
        kv_ops_s = time.perf_counter() - started_at if plan.kv_ops else 0.0
        works = [Work(chunk, self._live[chunk.request_id], []) for chunk in plan.chunks if chunk.seq_id not in failed]
        if not works:
            return _nothing_computed(plan, op_results, kv_ops_s)
        passes = self._passes(self._guesses.added(works))
        num_computed: Counter[int] = Counter()  # of each sequence
        started_at = time.perf_counter()
        for works in passes:
            code = self._decode(works)
            if code == NO_ROOM and any(work.drafts for work in works):  # guesses may never be in anyone's way
                works = [work._replace(drafts=[]) for work in works]
                code = self._decode(works)
            if code == NO_ROOM:
                break
            if code != 0:
                raise RuntimeError(f"llama_decode failed with code {code} on {self._batch.num_tokens} tokens")
            num_computed.update({work.chunk.seq_id: work.chunk.num_tokens for work in works})
        forward_s = time.perf_counter() - started_at
        rows = self._rows(works) if code == 0 else {}
        failed_requests: dict[str, str] = {}
        if len(passes) == 1:
            self._guesses.observe(works, forward_s)
        return StepResult(
            [num_computed[chunk.seq_id] for chunk in plan.chunks],
            self._draw(plan.chunks, rows, failed_requests),
            forward_s,
            out_of_room=code == NO_ROOM,
            kv_op_results=op_results,
            kv_ops_s=kv_ops_s,
            num_draft_tokens=sum(len(row.work.drafts) for row in rows.values()),
            failed=failed_requests,
        )

    def close(self) -> None:
        self._live.close()
        self._context.close()
        self._model.close()

    # ---- the forward pass ------------------------------------------------------------------------

    def _passes(self, works: list[Work]) -> list[list[Work]]:
        """What is computed at once; the largest number of logits rows comes last.

        One pass for all, but for a CPU with one pool of cells: llama.cpp attends for 64 queries at a time there, to
        every cell that one of them needs. Rows of other sequences among a long prompt's make all of it as slow as a
        prompt over the whole pool (128 tokens beside 7 decodes: 328 ms at once, 190 ms one after the other). The last
        token of a prompt goes with the decodes: the output layer, which is most of a small model, is read once for all.
        """
        if not self._splits or sum(work.num_tokens for work in works) < TILE_TOKENS:
            return [works]
        prompts = [work for work in works if work.chunk.num_tokens > 1]
        others = [work for work in works if work.chunk.num_tokens == 1]
        if not others:
            return [prompts]
        others += [work.last for work in prompts if work.num_outputs]
        return [[work.head if work.num_outputs else work for work in prompts], others] if prompts else [others]

    def _rows(self, works: Sequence[Work]) -> dict[int, _Rows]:
        """Where the logits of the last pass lie, by sequence; the passes before it have none."""
        num_outputs = self._batch.num_outputs
        logits = self._context.logits(num_outputs) if num_outputs else NO_LOGITS
        rows, first = {}, 0
        for work in works:
            if work.num_outputs:
                rows[work.chunk.seq_id] = _Rows(work, logits, first)
            first += work.num_outputs
        return rows

    def _decode(self, works: Sequence[Work]) -> int:
        """llama_decode's code, when the device has computed what was asked of it."""
        self._batch.clear()
        ids = self._sequences.activate([work.chunk.seq_id for work in works])
        for (chunk, live, drafts), chunk_ids in zip(works, ids, strict=True):
            length = self._sequences.length(chunk.seq_id)
            assert chunk.start == length, f"sequence {chunk.seq_id} holds {length} tokens, not {chunk.start}"
            tokens = live.tokens.slice(chunk.start, chunk.num_tokens)
            self._batch.add(chunk_ids, chunk.start, tokens, num_outputs=chunk.num_outputs)
            if drafts:
                self._batch.add(chunk_ids, chunk.start + chunk.num_tokens, drafts, num_outputs=len(drafts))
        added = [(work.chunk.seq_id, work.num_tokens) for work in works]
        started_at = time.perf_counter()
        is_decode = self._batch.num_outputs == self._batch.num_tokens
        num_rows = self._padding.padded(self._batch.num_tokens) if is_decode else self._batch.num_tokens
        code = self._sequences.decode(self._batch, added, num_rows)
        if is_decode and code == 0:  # on a CPU, where it counts, all is computed by now
            self._padding.observe(num_rows, time.perf_counter() - started_at)
        work_out_grammars(works)
        self._context.synchronize()
        return code

    # ---- draws -----------------------------------------------------------------------------------

    def _draw(
        self, chunks: Sequence[Chunk], rows: Mapping[int, _Rows], failed: dict[str, str]
    ) -> list[list[SampledToken]]:
        """Each chunk's tokens, out of the logits of the last decode."""
        drawn = self._draw_natively(list(rows.values()))
        return [
            self._draw_work(rows[chunk.seq_id], drawn.get(chunk.seq_id, ()), failed) if chunk.seq_id in rows else []
            for chunk in chunks
        ]

    def _draw_natively(self, rows: Sequence[_Rows]) -> dict[int, Sequence[int | None]]:
        """By sequence, the tokens that need nothing else: those behind its guesses, too, where they do not depend on
        whether a guess was right."""
        native = self._native_sampler
        rows = [row for row in rows if native is not None and native.knows(row.work.live.sampler)]
        if native is None or not rows:
            return {}
        nums = [1 if row.work.live.sampler.has_memory else row.work.num_outputs for row in rows]
        states: list[SamplerState] = []
        numbers: list[int] = []
        indices: list[int] = []
        for (work, _, first), num in zip(rows, nums, strict=True):
            states += [work.live.sampler] * num
            numbers += range(first, first + num)
            indices += range(work.live.num_output_tokens, work.live.num_output_tokens + num)
        tokens = iter(native.draw(rows[0].logits, numbers, states, indices))
        return {row.work.chunk.seq_id: list(islice(tokens, num)) for row, num in zip(rows, nums, strict=True)}

    def _draw_work(self, rows: _Rows, drawn: Sequence[int | None], failed: dict[str, str]) -> list[SampledToken]:
        """One token, and one more for each guess that was right. The cache keeps what was right."""
        (chunk, _, drafts), logits, first = rows
        try:
            tokens = rows.work.draw(self._sampler, logits, first, self._limits.end_token_ids, drawn)
        except GrammarFailed as error:
            failed[chunk.request_id] = str(error)
            tokens = []
        if drafts:
            num_right = max(0, len(tokens) - 1)
            is_cut = self._sequences.truncate(chunk.seq_id, chunk.start + chunk.num_tokens + num_right)
            assert is_cut, f"the guesses in sequence {chunk.seq_id} cannot be taken back"
        return tokens


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
