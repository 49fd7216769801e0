"""Writes a run down as it happens: who waits, who was served what, when each token came."""

from __future__ import annotations

from collections import Counter, defaultdict

from homeai.engine.engine import Step
from homeai.evaluation.records import Owner, RequestRecord, StepRecord
from homeai.request import Request
from homeai.scheduling.plan import RequestOutput
from homeai.scheduling.scheduler import Scheduler


class Books:
    """Reads the scheduler, and is its records' only writer."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.requests: dict[str, RequestRecord] = {}
        self.steps: list[StepRecord] = []
        self._scheduler = scheduler
        self._live: dict[str, Request] = {}
        self._running: set[str] = set()
        self._waiting: set[str] = set()
        self._num_waiting_of: Counter[Owner] = Counter()
        self._backlogged: frozenset[Owner] = frozenset()
        self._num_computed: dict[str, int] = {}  # tokens of a request that were computed, each counted once

    def arrive(self, request: Request, *, is_refused: bool) -> None:
        self.requests[request.request_id] = RequestRecord(
            request.request_id,
            request.source,
            request.fairness_class,
            request.arrival_at,
            request.num_prompt_tokens,
        )
        if not is_refused:
            self._live[request.request_id] = request
            self._start_waiting(request)

    def take_step(self, step: Step, now: float) -> None:
        """To be told before its outputs."""
        self._notice_who_runs(step)
        if step.plan.chunks:
            self.steps.append(self._step_record(step, now))

    def take_token(self, output: RequestOutput, now: float) -> None:
        self.requests[output.request_id].token_times.append(now)

    def finish(self, output: RequestOutput, now: float) -> None:
        request, record = self._live.pop(output.request_id), self.requests[output.request_id]
        assert record.finished_at is None, f"{request.request_id} ended twice"
        self._stop_waiting(request)
        record.finished_at = now
        record.finish_reason = output.finish_reason
        record.admitted_at = request.admitted_at
        record.num_preemptions = request.num_preemptions
        record.num_cached_tokens = request.num_cached_tokens
        record.num_recomputed_tokens = request.num_recomputed_tokens
        record.parked_s = request.parked_s

    # ---- who waits -------------------------------------------------------------------------------

    def _notice_who_runs(self, step: Step) -> None:
        """Whoever has a chunk does not wait; whoever was taken out of the batch waits again."""
        for request_id in {chunk.request_id for chunk in step.plan.chunks} & self._waiting:
            self._stop_waiting(self._live[request_id])
        running = {request.request_id for request in self._scheduler.running}
        ended = {output.request_id for output in step.outputs if output.finish_reason is not None}
        for request_id in (self._running - running - ended) & self._live.keys():
            self._start_waiting(self._live[request_id])
        self._running = running

    def _start_waiting(self, request: Request) -> None:
        if request.request_id in self._waiting:
            return
        owner = (request.fairness_class, request.source)
        self._waiting.add(request.request_id)
        self._num_waiting_of[owner] += 1
        if self._num_waiting_of[owner] == 1:
            self._backlogged |= {owner}

    def _stop_waiting(self, request: Request) -> None:
        if request.request_id not in self._waiting:
            return
        owner = (request.fairness_class, request.source)
        self._waiting.discard(request.request_id)
        self._num_waiting_of[owner] -= 1
        if not self._num_waiting_of[owner]:
            self._backlogged -= {owner}

    # ---- a step ----------------------------------------------------------------------------------

    def _step_record(self, step: Step, now: float) -> StepRecord:
        plan = step.plan
        return StepRecord(
            now - step.step_s,
            step.step_s,
            plan.mode,
            len(plan.chunks),
            plan.num_idle_rows,
            plan.num_decode_tokens,
            plan.num_prefill_tokens,
            len(self._waiting),
            step.num_preemptions,
            self._scheduler.cache.num_used,
            self._service(step),
            self._backlogged,
        )

    def _service(self, step: Step) -> dict[Owner, float]:
        """Weighted tokens by owner: what was computed or drawn for the first time."""
        service: defaultdict[Owner, float] = defaultdict(float)
        drawn = Counter(output.request_id for output in step.outputs if output.token is not None)
        for chunk, count in zip(step.plan.chunks, step.result.num_computed, strict=True):
            request = self._live[chunk.request_id]
            service[request.fairness_class, request.source] += self._newly_served(
                request, chunk.start, chunk.start + count, drawn[chunk.request_id]
            )
        return dict(service)

    def _newly_served(self, request: Request, start: int, end: int, num_drawn: int) -> float:
        seen = max(start, self._num_computed.get(request.request_id, 0))
        num_prompt = max(0, min(end, request.num_prompt_tokens) - seen)
        self._num_computed[request.request_id] = max(seen, end)
        config = self._scheduler.config
        return num_prompt * config.prompt_token_weight + num_drawn * config.output_token_weight
