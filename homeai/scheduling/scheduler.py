"""What runs in the next step, and what became of the last one. Pure: time is an argument.

There are no phases. Every running request has `num_tokens − num_computed_tokens` to catch up with; one
missing token is a decode, more are a prefill, and chunked prefill or coming back after preemption are the
same thing. After Orca (Yu et al., OSDI '22) and Sarathi-Serve (Agrawal et al., OSDI '24).

`schedule` decides in this order:
1. room: while the decodes of this step do not fit the cache, park a victim;
2. decodes of all running requests, one token each;
3. prefill, inside the token budget: of the running requests that miss more than a token and the head of the
   queue, always the one whose class and source were served least (a tie goes to what runs already). A long
   prompt therefore cannot keep a newcomer of another source out, however many chunks it has left;
4. nothing at all could run: park a victim and decide again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from homeai.request import FinishReason, Mode, Request, RequestStatus, WaitReason
from homeai.scheduling.cache import KVCache
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.plan import Chunk, RequestOutput, StepPlan, StepResult
from homeai.scheduling.preemption import choose_victim
from homeai.scheduling.queues import FairQueue

DECODE_RESERVE = 16  # cells kept free per running request at admission, so that it can go on for a while
MAX_STALE_DEADLINES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The controls; each can be changed alone. Sizes in tokens, times in seconds."""

    mode: str = "auto"  # auto | continuous | single
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_chunk_tokens: int = 256
    chunked_prefill: bool = True
    num_kv_cells: int = 16384
    max_model_len: int = 16384
    end_token_ids: frozenset[int] = frozenset()
    class_weights: Mapping[str, float]
    queue_timeouts_s: Mapping[str, float]
    prompt_token_weight: float = 1.0
    output_token_weight: float = 2.0


class Scheduler:
    """Owns every live request's status and counts; nobody else writes them."""

    def __init__(self, config: SchedulerConfig) -> None:
        assert config.max_model_len <= config.num_kv_cells, (
            f"a request of {config.max_model_len} tokens would never fit {config.num_kv_cells} cells"
        )
        assert config.max_num_seqs <= config.max_num_batched_tokens, (
            f"{config.max_num_seqs} decodes would not fit a step of {config.max_num_batched_tokens} tokens"
        )
        self.config = config
        self.share = FairShare(config.class_weights)
        self.waiting = FairQueue(self.share)
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.cache = KVCache(config.num_kv_cells, config.max_num_seqs)
        self.num_preemptions = 0  # since the start
        self._ran_out = False  # the runner had less room than we count: nobody joins until someone has left
        self._deadlines: list[tuple[float, str]] = []  # a heap; entries outlive their requests for a while

    @property
    def has_work(self) -> bool:
        return bool(self.requests) or self.cache.has_pending_ops

    @property
    def mode(self) -> Mode:
        """Single as soon as at most one request is live, and back within the same step."""
        if self.config.mode == "auto":
            return Mode.SINGLE if len(self.requests) <= 1 else Mode.CONTINUOUS
        return Mode(self.config.mode)

    @property
    def wait_reason(self) -> WaitReason | None:
        """Why the queue does not move: its head does not fit, and nobody overtakes it."""
        head = self.waiting.peek()
        return None if head is None else self._misfit(head) or WaitReason.TOKEN_BUDGET

    # ---- in and out ------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        assert request.request_id not in self.requests, f"request {request.request_id} is live already"
        assert 0 < request.num_prompt_tokens <= self.config.max_model_len, "the front end checks lengths"
        self.requests[request.request_id] = request
        self.waiting.push(request)
        heapq.heappush(self._deadlines, (self._deadline(request), request.request_id))
        if len(self._deadlines) > 2 * len(self.requests) + MAX_STALE_DEADLINES:
            self._deadlines = sorted((self._deadline(r), r.request_id) for r in self.requests.values())

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> RequestOutput | None:
        """End a request in whatever state it is. Unknown or finished ones are ignored: a repeat is harmless."""
        request = self.requests.get(request_id)
        return self._finish(request, reason) if request is not None else None

    def expire(self, now: float) -> list[RequestOutput]:
        """End what has waited longer than its class allows and never ran."""
        outputs = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = self.requests.get(heapq.heappop(self._deadlines)[1])
            if request is None or request.status is not RequestStatus.WAITING:
                continue
            if self._deadline(request) <= now:  # else the entry was of an earlier request of this name
                outputs.append(self._finish(request, FinishReason.TIMEOUT))
        return outputs

    def _deadline(self, request: Request) -> float:
        return request.arrival_at + self.config.queue_timeouts_s.get(request.fairness_class, math.inf)

    # ---- a step ----------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """The next step. Counts are charged and cells taken as planned; `update` corrects them."""
        plan = StepPlan(mode=self.mode)
        self._make_room_for_decodes(now)
        self._plan_decodes(plan)
        self._plan_prefills(plan, now)
        while not plan.chunks and len(self.running) > 1:
            self._preempt(self._victim(), now)
            self._plan_prefills(plan, now)
        plan.kv_ops = self.cache.take_pending_ops()
        return plan

    def update(self, plan: StepPlan, result: StepResult, now: float) -> Iterator[RequestOutput]:
        """Take in what the runner did; the gains and ends of this step, one by one. To be read to its end."""
        for chunk, num_computed, token in zip(plan.chunks, result.num_computed, result.sampled, strict=True):
            request = self.requests[chunk.request_id]
            self.cache.give_back(chunk.seq_id, chunk.num_tokens - num_computed)
            request.num_computed_tokens += num_computed
            if token is not None:
                request.num_output_tokens += 1
                if request.first_token_at is None:
                    request.first_token_at = now
                finish = self._finish_reason(request, token.token_id)
                if finish is not None:
                    self._finish(request, finish)
                yield RequestOutput(request.request_id, request.num_output_tokens - 1, token, finish)
            elif request.sampling.max_tokens == 0 and request.num_uncomputed_tokens == 0:
                yield self._finish(request, FinishReason.LENGTH)
        if result.out_of_room:
            yield from self._relieve(now)

    # ---- decisions, in the order of the module's docstring -------------------------------------------

    def _make_room_for_decodes(self, now: float) -> None:
        while self.cache.num_free < sum(not r.is_prefilling for r in self.running):
            self._preempt(self._victim(), now)

    def _plan_decodes(self, plan: StepPlan) -> None:
        for request in self.running:
            if not request.is_prefilling:
                self._plan_chunk(plan, request, 1)
                plan.num_decode_tokens += 1

    def _plan_prefills(self, plan: StepPlan, now: float) -> None:
        partial = [r for r in self.running if r.is_prefilling]
        while True:
            candidates = partial
            head = self.waiting.peek()
            if head is not None and self._misfit(head) is None:
                candidates = [*partial, head]
            request = min(candidates, key=self._service_key, default=None)
            count = self._chunk_size(plan, request) if request is not None else 0
            if request is None or count == 0:
                return
            if request is head:
                self._admit(plan, request, now)
            else:
                partial.remove(request)
            self._plan_chunk(plan, request, count)
            plan.num_prefill_tokens += count

    def _service_key(self, request: Request) -> tuple[float, float, float, bool, float]:
        share = self.share
        return (
            *share.class_key(request.fairness_class),
            share.of_class(request.fairness_class)[request.source],
            request.status is not RequestStatus.RUNNING,
            request.arrival_at,
        )

    def _misfit(self, request: Request) -> WaitReason | None:
        """Why `request` cannot join the running ones, or None. The ones behind it do not overtake."""
        if self.mode is Mode.SINGLE and self.running:
            return WaitReason.SINGLE_MODE
        if len(self.running) >= self.config.max_num_seqs:
            return WaitReason.SEQUENCE_SLOT
        if self.running:
            if self._ran_out:
                return WaitReason.KV_SPACE
            promised = sum(r.num_tokens + DECODE_RESERVE for r in self.running)
            if promised + request.num_tokens + DECODE_RESERVE > self.cache.num_cells:
                return WaitReason.KV_SPACE
        return None

    def _chunk_size(self, plan: StepPlan, request: Request) -> int:
        """Tokens of `request` to compute in this step; 0 when the budget or the cache has no more."""
        config = self.config
        budget = config.max_num_batched_tokens - plan.num_tokens
        want = request.num_uncomputed_tokens
        if config.chunked_prefill:
            ceiling = config.max_num_batched_tokens if plan.mode is Mode.SINGLE else config.max_chunk_tokens
            return max(0, min(want, ceiling, budget, self.cache.num_free))
        fits = want <= budget or plan.num_prefill_tokens == 0  # one whole prompt may exceed the budget
        return want if fits and want <= self.cache.num_free else 0

    def _plan_chunk(self, plan: StepPlan, request: Request, count: int) -> None:
        assert request.seq_id is not None, "only running requests have a sequence"
        start = request.num_computed_tokens
        reaches_end = start + count == request.num_tokens
        num_outputs = int(reaches_end and request.sampling.max_tokens > 0)
        self.cache.take(request.seq_id, count)
        self._charge(request, start + count, num_outputs)
        plan.chunks.append(Chunk(request.request_id, request.seq_id, start, count, num_outputs))

    def _charge(self, request: Request, end: int, num_outputs: int) -> None:
        """Charge the source for tokens up to `end` and the one drawn there, each once in a request's life."""
        old, new = request.num_charged_tokens, end + num_outputs
        if new <= old:
            return
        request.num_charged_tokens = new
        num_prompt = max(0, min(new, request.num_prompt_tokens) - old)
        cost = num_prompt * self.config.prompt_token_weight + (new - old - num_prompt) * self.config.output_token_weight
        self.share.charge(request.fairness_class, request.source, cost)

    # ---- changes of state ------------------------------------------------------------------------

    def _admit(self, plan: StepPlan, request: Request, now: float) -> None:
        self.waiting.remove(request)
        request.seq_id = self.cache.open_sequence()
        if request.preempted_at is not None:
            request.parked_s += now - request.preempted_at
            request.preempted_at = None
        if request.admitted_at is None:
            request.admitted_at = now
            plan.admitted.append(request.request_id)
        request.status = RequestStatus.RUNNING
        self.running.append(request)

    def _victim(self) -> Request:
        return choose_victim(self.running, self.share.weight)

    def _preempt(self, request: Request, now: float) -> None:
        """Park: the KV is dropped and computed again later, the text stays."""
        self._leave_batch(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.preempted_at = now
        self.num_preemptions += 1
        self.waiting.push(request, front=True)

    def _relieve(self, now: float) -> list[RequestOutput]:
        """The runner found no room although the count said otherwise: one waits, nobody fails."""
        if len(self.running) > 1:
            self._preempt(self._victim(), now)
            self._ran_out = True
            return []
        return [self._finish(r, FinishReason.LENGTH) for r in list(self.running)]

    def _finish_reason(self, request: Request, token_id: int) -> FinishReason | None:
        sampling = request.sampling
        is_end = token_id in self.config.end_token_ids and not sampling.ignore_eos
        if is_end and request.num_output_tokens > sampling.min_tokens:
            return FinishReason.STOP
        if request.num_output_tokens >= sampling.max_tokens or request.num_tokens >= self.config.max_model_len:
            return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason) -> RequestOutput:
        if request.status is RequestStatus.RUNNING:
            self._leave_batch(request)
            self._ran_out = False
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
        return RequestOutput(request.request_id, request.num_output_tokens, None, reason)

    def _leave_batch(self, request: Request) -> None:
        assert request.seq_id is not None, "only running requests have a sequence"
        self.running.remove(request)
        self.cache.close_sequence(request.seq_id)
        request.seq_id = None
