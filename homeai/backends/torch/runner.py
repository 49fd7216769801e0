"""Runs step plans on torch: KV ops on block tables, one forward pass over all chunks, one sampling pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from homeai.backends.shared.guesses import Guesses
from homeai.backends.shared.live import LiveRequests
from homeai.backends.shared.work import Work, work_out_grammars
from homeai.backends.torch.attention import Attention
from homeai.backends.torch.batch import Piece, StepBatch, step_batch
from homeai.backends.torch.device_sampler import ASK_HOST, DeviceSampler
from homeai.backends.torch.graphs import DecodeGraphs
from homeai.backends.torch.kv import PagedKV
from homeai.backends.torch.layout import Uploader
from homeai.backends.torch.model import Model
from homeai.backends.torch.ops import KVOperations
from homeai.backends.torch.rows import Rows
from homeai.backends.torch.tables import BlockTables, Copy
from homeai.engine.runner import RunnerLimits
from homeai.errors import GrammarFailed
from homeai.messages import EngineConfig
from homeai.request import Request, SampledToken
from homeai.sampling.grammars import Grammars
from homeai.sampling.sampler import BatchSampler
from homeai.scheduling.plan import Chunk, KVOpResult, StepPlan, StepResult
from homeai.vocabulary import Vocab


class TorchRunner:
    """The `ModelRunner` of safetensors. `config`: what was loaded; `notes`: where that is not what was asked for."""

    def __init__(
        self,
        model: Model,
        vocab: Vocab,
        kv: PagedKV,
        tables: BlockTables,
        attention: Attention,
        limits: RunnerLimits,
        *,
        graphs: DecodeGraphs | None = None,
        config: EngineConfig,
        notes: list[str],
    ) -> None:
        self.config = config
        self.notes = notes
        self.device = model.device.type
        self.model_bytes = model.size_bytes
        self.kv_bytes = kv.num_bytes
        self._model = model
        self._kv = kv
        self._tables = tables
        self._attention = attention
        self._graphs = graphs
        self._operations = KVOperations(tables, kv)
        self._limits = limits
        self._uploader = Uploader(model.device)
        self._sampler = BatchSampler(model.num_tokens, limits.end_token_ids)
        is_on_host = model.device.type == "cpu"  # the logits lie where numpy can read them
        self._device_sampler = (
            None if is_on_host else DeviceSampler(model.num_tokens, limits.end_token_ids, model.device)
        )
        self._guesses = Guesses(
            max_tokens=limits.max_num_batched_tokens,
            max_outputs=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
        )
        self._live = LiveRequests(Grammars(vocab, limits.end_token_ids), partial(vocab.piece, special=False))

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    def warm_up(self) -> None:
        """Touch every weight and record every graph once, so that the first requests do not wait for it."""
        if self._graphs is not None:
            with torch.inference_mode():
                self._graphs.warm_up()
        token_ids = np.zeros(1, np.int32)
        self._extend([(0, 1)])
        self._forward([Piece(0, token_ids, 1, self._blocks(0))])
        self._tables.drop(0)

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
        started_at = time.perf_counter()
        works = self._fitting(self._guesses.added(works))
        if not works:
            return _nothing_computed(plan, op_results, kv_ops_s, out_of_room=True)
        rows = self._compute(works)
        forward_s = time.perf_counter() - started_at
        self._guesses.observe(works, forward_s)
        failed_requests: dict[str, str] = {}
        return StepResult(
            [chunk.num_tokens if chunk.seq_id in rows else 0 for chunk in plan.chunks],
            self._draw(plan.chunks, rows, failed_requests),
            forward_s,
            kv_op_results=op_results,
            kv_ops_s=kv_ops_s,
            num_draft_tokens=sum(len(work.drafts) for work in works),
            failed=failed_requests,
        )

    def close(self) -> None:
        self._live.close()

    # ---- the forward pass ------------------------------------------------------------------------

    def _fitting(self, works: list[Work]) -> list[Work]:
        """As they are if there are blocks for them, else without their guesses, else nothing."""
        for candidates in (works, [work._replace(drafts=[]) for work in works]):
            if self._tables.has_room([(work.chunk.seq_id, work.num_tokens) for work in candidates]):
                return candidates
        return []

    def _compute(self, works: Sequence[Work]) -> dict[int, Rows]:
        """By sequence."""
        for work in works:
            length = self._tables.length(work.chunk.seq_id)
            assert work.chunk.start == length, (
                f"sequence {work.chunk.seq_id} holds {length} tokens, not {work.chunk.start}"
            )
        self._extend([(work.chunk.seq_id, work.num_tokens) for work in works])
        batch, logits = self._forward([self._piece(work) for work in works])
        work_out_grammars(works)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        for work in works:
            if not work.drafts:
                self._tables.settle(work.chunk.seq_id, work.live.tokens)
        return {
            work.chunk.seq_id: Rows(work, logits, first) for work, first in zip(works, batch.first_output, strict=True)
        }

    def _piece(self, work: Work) -> Piece:
        chunk, live, drafts = work
        token_ids = live.tokens.slice(chunk.start, chunk.num_tokens)
        if drafts:
            token_ids = np.append(token_ids, np.array(drafts, np.int32))
        return Piece(chunk.start, token_ids, work.num_outputs, self._blocks(chunk.seq_id))

    def _blocks(self, seq_id: int) -> list[list[int]]:
        return [self._tables.blocks(seq_id, group) for group in range(len(self._tables.groups))]

    def _extend(self, wanted: Sequence[tuple[int, int]]) -> None:
        copies: list[Copy] = []
        for seq_id, count in wanted:
            copies += self._tables.extend(seq_id, count)
        self._kv.copy(copies)

    def _forward(self, pieces: Sequence[Piece]) -> tuple[StepBatch, torch.Tensor]:
        with torch.inference_mode():
            if self._graphs is not None and (replayed := self._graphs.forward(pieces)) is not None:
                return replayed
            batch = step_batch(pieces, self._tables.groups, is_padded=self._attention.is_padded)
            step = self._uploader.upload(batch)
            self._attention.plan(step)
            return batch, self._model.forward(step, self._attention)

    # ---- draws -----------------------------------------------------------------------------------

    def _draw(
        self, chunks: Sequence[Chunk], rows: Mapping[int, Rows], failed: dict[str, str]
    ) -> list[list[SampledToken]]:
        """Each chunk's tokens."""
        drawn = self._draw_on_device([row for row in rows.values() if row.work.chunk.num_outputs])
        return [
            self._draw_chunk(rows[chunk.seq_id], drawn.get(chunk.seq_id), failed)
            if chunk.num_outputs and chunk.seq_id in rows
            else []
            for chunk in chunks
        ]

    def _draw_on_device(self, rows: Sequence[Rows]) -> dict[int, int]:
        """By sequence, the tokens that need nobody's help: no more of the logits comes back then."""
        sampler = self._device_sampler
        if sampler is None:
            return {}
        rows = [row for row in rows if not row.work.drafts and sampler.knows(row.work.live.sampler)]
        if not rows:
            return {}
        with torch.inference_mode():
            first = torch.tensor([row.first for row in rows], device=rows[0].logits.device)
            states = [row.work.live.sampler for row in rows]
            tokens = sampler.draw(rows[0].logits[first], states, [row.work.live.num_output_tokens for row in rows])
        return {row.work.chunk.seq_id: token for row, token in zip(rows, tokens, strict=True) if token != ASK_HOST}

    def _draw_chunk(self, rows: Rows, drawn: int | None, failed: dict[str, str]) -> list[SampledToken]:
        """One token, and one more for each guess that was right. The cache keeps what was right.

        `drawn`: the token, if it is drawn already; a grammar may refuse it.
        """
        (chunk, live, drafts), logits, first = rows
        grammar = live.sampler.grammar
        tokens: list[SampledToken] = []
        try:
            if drawn is not None and (grammar is None or not grammar.refuses(drawn)):
                live.append(drawn)
                return [SampledToken(drawn)]
            host = logits[first : first + 1 + len(drafts)].cpu().numpy()
            tokens = rows.work.draw(self._sampler, host, 0, self._limits.end_token_ids)
        except GrammarFailed as error:
            failed[chunk.request_id] = str(error)
            tokens = []
        if drafts:
            num_right = max(0, len(tokens) - 1)
            is_cut = self._tables.truncate(chunk.seq_id, chunk.start + chunk.num_tokens + num_right)
            assert is_cut, f"the guesses in sequence {chunk.seq_id} cannot be taken back"
            self._tables.settle(chunk.seq_id, live.tokens)
        return tokens


def _nothing_computed(
    plan: StepPlan, op_results: list[KVOpResult], kv_ops_s: float, *, out_of_room: bool = False
) -> StepResult:
    num_chunks = len(plan.chunks)
    return StepResult(
        [0] * num_chunks,
        [()] * num_chunks,
        0.0,
        out_of_room=out_of_room,
        kv_op_results=op_results,
        kv_ops_s=kv_ops_s,
    )
