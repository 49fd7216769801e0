"""What became of a step: the runner's results, taken into the counts of requests and cache."""

from __future__ import annotations

from collections.abc import Iterator

from homeai.request import FinishReason, Request
from homeai.scheduling.batch import Batch
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.plan import Chunk, KVOp, KVOpKind, RequestOutput, StepPlan, StepResult
from homeai.scheduling.preemption import choose_victim
from homeai.scheduling.tree import Sequence

PRIOR_HOST_BYTES_PER_S = 1e9
HOST_SPEED_RATE = 0.2


class StepOutcome:
    """`host_bytes_per_s`: how fast KV moves to host memory and back, as measured."""

    def __init__(self, config: SchedulerConfig, share: FairShare, batch: Batch, cache: KVCache) -> None:
        self._config = config
        self._share = share
        self._batch = batch
        self._cache = cache
        self.host_bytes_per_s = PRIOR_HOST_BYTES_PER_S

    def take(self, plan: StepPlan, result: StepResult, now: float) -> Iterator[RequestOutput]:
        """The gains and ends of this step, one by one. To be read to its end."""
        self._take_op_results(plan, result)
        for chunk, num_computed, tokens in zip(plan.chunks, result.num_computed, result.sampled, strict=True):
            request, seq = self._batch.requests[chunk.request_id], self._batch.sequences[chunk.request_id]
            self._take_computed(chunk, request, seq, num_computed)
            if tokens and request.first_token_at is None:
                request.first_token_at, request.prefill_parked_s = now, request.parked_s
            num_accepted = len(tokens) - 1
            for index, token in enumerate(tokens):
                request.output_token_ids.append(token.token_id)
                request.num_output_tokens += 1
                finish = self.finish_reason(request)
                if num_accepted and (finish is not None or index == num_accepted):
                    self._take_accepted(request, seq, num_accepted, index)
                if finish is not None:
                    self._batch.finish(request, finish, now)
                yield RequestOutput(request.request_id, request.num_output_tokens - 1, token, finish)
                if finish is not None:
                    break
            if not tokens and request.sampling.max_tokens == 0 and request.num_uncomputed_tokens == 0:
                yield self._batch.finish(request, FinishReason.LENGTH, now)
        if result.out_of_room:
            yield from self._relieve(now)

    def _take_computed(self, chunk: Chunk, request: Request, seq: Sequence, num_computed: int) -> None:
        computed = request.token_ids(chunk.start, chunk.start + num_computed)
        self._cache.commit(seq, chunk.num_tokens + chunk.num_drafts, computed)
        request.num_computed_tokens += num_computed

    def _take_accepted(self, request: Request, seq: Sequence, num_accepted: int, num_kept: int) -> None:
        """Drafts that were right are computed already; what lies behind an end is cut off again."""
        end = request.num_computed_tokens + num_kept
        if num_kept:
            self._cache.commit(seq, 0, request.token_ids(request.num_computed_tokens, end))
        request.num_computed_tokens = end
        self._share.charge_tokens(request, end + 1)
        if num_kept < num_accepted:
            self._cache.truncate(seq, end)

    def finish_reason(self, request: Request) -> FinishReason | None:
        """Why the last token of its output is the last; None when it goes on, or has not begun."""
        if not request.num_output_tokens:
            return None
        sampling = request.sampling
        must_go_on = sampling.ignore_eos or request.num_output_tokens <= sampling.min_tokens
        is_over = sampling.grammar is not None or not must_go_on  # where a grammar allows nothing else, it ends anyway
        if is_over and request.output_token_ids[-1] in self._config.end_token_ids:
            return FinishReason.STOP
        if request.num_output_tokens >= sampling.max_tokens or request.num_tokens >= self._config.max_model_len:
            return FinishReason.LENGTH
        return None

    def _relieve(self, now: float) -> list[RequestOutput]:
        """The runner found no room although the count said otherwise: one waits, nobody fails."""
        running = self._batch.running
        if self._cache.evict():
            return []
        if len(running) > 1:
            self._batch.park(choose_victim(running, self._share.weight), now)
            self._batch.ran_out = True
            return []
        if self._cache.unpin():
            return []
        return [self._batch.finish(r, FinishReason.LENGTH, now) for r in list(running)]

    # ---- KV ops ----------------------------------------------------------------------------------

    def _take_op_results(self, plan: StepPlan, result: StepResult) -> None:
        lost: set[int] = set()
        num_bytes = 0
        for op, done in zip(plan.kv_ops, result.kv_op_results, strict=False):
            num_bytes += done.num_bytes
            if done.num_bytes:
                self._count_moved(op, done.num_bytes)
            if op.kind is KVOpKind.SAVE:
                if not done.ok:
                    self._cache.host.discard(op.other)
            elif op.kind is not KVOpKind.FORGET:
                lost.discard(op.seq_id)
                if not done.ok:
                    lost.add(op.seq_id)
        for seq_id in lost:
            self._lose(seq_id)
        if num_bytes and result.kv_ops_s > 0:
            self.host_bytes_per_s += HOST_SPEED_RATE * (num_bytes / result.kv_ops_s - self.host_bytes_per_s)

    def _lose(self, seq_id: int) -> None:
        """A sequence is empty now: its request begins again."""
        lost = self._cache.lose(seq_id)
        for request_id, seq in self._batch.sequences.items():
            if seq is lost:
                self._batch.requests[request_id].num_computed_tokens = 0

    def _count_moved(self, op: KVOp, num_bytes: int) -> None:
        """Moving is counted for the request that was parked, or came back."""
        if op.kind is KVOpKind.SAVE:
            request_id = self._cache.host.parked_by(op.other)
        else:
            sequences = self._batch.sequences.items()
            request_id = next((name for name, seq in sequences if seq.seq_id == op.seq_id), None)
        request = self._batch.requests.get(request_id or "")
        if request is not None:
            request.num_moved_bytes += num_bytes
