"""Who is live, who runs, and in which sequence: the only writer of a request's status."""

from __future__ import annotations

from homeai.request import FinishReason, Request, RequestStatus
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.plan import RequestOutput, StepPlan
from homeai.scheduling.queues import FairQueue
from homeai.scheduling.tree import Sequence

DECODE_RESERVE = 16  # cells kept free per running request at admission, so that it can go on for a while


class Batch:
    """`running` is in the order of admission. `ran_out`: the runner had less room than we count."""

    def __init__(self, config: SchedulerConfig, share: FairShare, cache: KVCache) -> None:
        self._config = config
        self._share = share
        self._cache = cache
        self.requests: dict[str, Request] = {}
        self.waiting = FairQueue(share)
        self.running: list[Request] = []
        self.sequences: dict[str, Sequence] = {}
        self.ran_out = False
        self.num_preemptions = 0  # since the start

    @property
    def num_promised_cells(self) -> int:
        """What the running ones have still to compute, and a while to go on."""
        return sum(r.num_uncomputed_tokens + DECODE_RESERVE for r in self.running)

    def domain(self, request: Request) -> str:
        """Whose sequences it may begin with: everybody's, its source's, or only its own."""
        if not request.cache_prompt:
            return f"request {request.request_id}"
        policy = self._config.sources.get(request.source)
        return f"source {request.source}" if policy is not None and policy.private else ""

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        request.num_cached_tokens = self._cache.find(self.domain(request), request.prompt_token_ids).length
        self.waiting.push(request)

    def join(self, plan: StepPlan, request: Request, now: float) -> None:
        """It runs from this step on, from where the cache knows it."""
        self.waiting.remove(request)
        is_new = request.admitted_at is None
        seq = self._cache.open(
            self.domain(request),
            request.token_ids(0, request.num_tokens),
            now,
            max_cells=self._cache.num_available - self.num_promised_cells,
            is_new=is_new,
        )
        assert seq is not None, "as many sequences as requests may run"
        self.sequences[request.request_id] = seq
        if request.preempted_at is not None:
            request.parked_s += now - request.preempted_at
            request.preempted_at = None
            request.num_recomputed_tokens += max(0, request.num_computed_tokens - seq.length)
            self._cache.forget_parked(request.request_id)
            plan.resumed.append(request.request_id)
        if is_new:
            request.admitted_at = now
            request.num_cached_tokens = seq.length
            request.num_charged_tokens = max(request.num_charged_tokens, seq.length)
            plan.admitted.append(request.request_id)
        request.num_computed_tokens = seq.length
        request.joined_at = now
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        self._share.start(request.fairness_class, request.source)

    def park(self, request: Request, now: float) -> None:
        """Out of the batch for a while. Its sequence stays as long as nobody needs the room."""
        self._leave(request, now, keep=True, parked_by=request.request_id)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.preempted_at = now
        self.num_preemptions += 1
        self.waiting.push(request, front=True)

    def finish(self, request: Request, reason: FinishReason, now: float) -> RequestOutput:
        if request.status is RequestStatus.RUNNING:
            if request.is_pin and request.num_computed_tokens == request.num_prompt_tokens:
                request.is_pinned = self._cache.pin(self.sequences[request.request_id])
            self._leave(request, now, keep=request.cache_prompt)
        else:
            self.waiting.remove(request)
            if request.status is RequestStatus.PREEMPTED:
                self._cache.forget_parked(request.request_id, keep=request.cache_prompt)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
        return RequestOutput(request.request_id, request.num_output_tokens, None, reason)

    def _leave(self, request: Request, now: float, *, keep: bool, parked_by: str | None = None) -> None:
        self.running.remove(request)
        self._share.end(request.fairness_class, request.source)
        self._cache.close(self.sequences.pop(request.request_id), now, keep=keep, parked_by=parked_by)
        self.ran_out = False
