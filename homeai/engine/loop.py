"""The busy loop: take in messages, step, hand out what came of it; block when nothing is live."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from homeai.engine.engine import Engine, Step
from homeai.engine.wire import Inbox, Outbox, Prepared
from homeai.errors import GrammarFailed
from homeai.messages import (
    AbortRequests,
    AddRequest,
    Down,
    Finished,
    Heartbeat,
    Output,
    Ping,
    Progress,
    RequestFailed,
    Served,
    Shutdown,
    StepOutputs,
    StepStats,
)
from homeai.request import FinishReason, Request, RequestStatus
from homeai.scheduling.plan import Chunk, RequestOutput, StepPlan

log = logging.getLogger("homeai.engine")

TELL_INTERVAL_S = 0.04  # what quick steps bring leaves together: each time costs as much as writing a token
SNAPSHOT_INTERVAL_S = 0.5
SNAPSHOT_MAX_REQUESTS = 200
SNAPSHOT_MAX_SOURCES = 50
UNFIT_GRAMMAR = "the grammar or schema of this request cannot be followed: {}"


class EngineLoop:
    """Owns the engine. `run` returns on Shutdown; an exception out of it means that the engine is broken.

    `step_log` gets a line of JSON per step, for fitting a cost model (`homeai simulate --fit`).
    """

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        outbox: Outbox,
        *,
        heartbeat_interval_s: float,
        step_log: BinaryIO | None = None,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._outbox = outbox
        self._heartbeat_interval_s = heartbeat_interval_s
        self._step = 0
        self._num_added = 0
        self._aborted: list[RequestOutput] = []
        self._live: dict[str, Request] = {}
        self._preparing: dict[str, Request] = {}  # of these, what the scheduler has not heard of yet
        self._snapshot_at = 0.0
        self._step_log = step_log
        self._running = True
        self._wake_at: float | None = None  # the last plan had nothing to compute before
        self._told_at = -math.inf  # the end of the last step that was not held back
        engine.on_plan = self._announce

    def run(self) -> None:
        while self._running:
            self._take_messages()
            if self._engine.has_work:
                self._run_step()
            elif self._aborted:
                self._send(None)
        if self._aborted:
            self._send(None)

    def _take_messages(self) -> None:
        """All that have come; blocks for one when there is nothing to compute, beating while it waits."""
        message = self._inbox.get_nowait()
        while message is None and not self._aborted and (pause_s := self._pause_s()) > 0:
            self._outbox.flush()
            message = self._inbox.get(min(pause_s, self._heartbeat_interval_s))
            if message is None:
                self._outbox.put(Heartbeat(self._step))
        if message is not None:
            self._handle(message)
            self._take_pending()

    def _take_pending(self) -> None:
        while self._running and (message := self._inbox.get_nowait()) is not None:
            self._handle(message)

    def _pause_s(self) -> float:
        """How long there is nothing to compute, unless a message comes."""
        if not self._engine.has_work:
            return math.inf
        return self._wake_at - self._engine.clock.now() if self._wake_at is not None else 0.0

    def _handle(self, message: Down | Prepared) -> None:
        match message:
            case Prepared():
                if (request := self._preparing.pop(message.request_id, None)) is not None:
                    self._admit(request)
            case AddRequest():
                self._add(message)
            case AbortRequests():
                self._abort(message.request_ids, message.reason)
            case Ping():
                self._outbox.put(Heartbeat(self._step))
            case Shutdown():
                self._abort(list(self._live), FinishReason.ABORT)
                self._running = False
            case _:
                raise AssertionError(f"unexpected message {type(message).__name__}")

    def _add(self, message: AddRequest) -> None:
        request = Request(
            message.request_id,
            message.prompt_token_ids,
            message.sampling,
            source=message.source,
            fairness_class=message.fairness_class,
            arrival_at=message.arrival_at,
            cache_prompt=message.cache_prompt,
            is_pin=message.is_pin,
            output_token_ids=list(message.output_token_ids),
        )
        self._num_added += 1
        request_id = request.request_id
        if self._engine.prepare(request, lambda: self._inbox.put(Prepared(request_id))):
            self._admit(request)
        else:
            self._live[request_id] = self._preparing[request_id] = request

    def _admit(self, request: Request) -> None:
        try:
            self._engine.add(request)
        except GrammarFailed as error:
            self._fail(request.request_id, UNFIT_GRAMMAR.format(error), is_invalid=True)
            return
        except AssertionError as error:  # the front end should have refused it
            self._fail(request.request_id, str(error))
            return
        self._live[request.request_id] = request
        if (reason := self._engine.scheduler.finish_reason(request)) is not None:  # its last token was its last
            self._abort([request.request_id], reason)

    def _fail(self, request_id: str, message: str, *, is_invalid: bool = False) -> None:
        """This one fails, the loop goes on."""
        log.log(logging.INFO if is_invalid else logging.ERROR, "request %s cannot be served: %s", request_id, message)
        self._live.pop(request_id, None)
        self._outbox.put(RequestFailed(request_id, message, is_invalid))

    def _abort(self, request_ids: list[str], reason: FinishReason) -> None:
        for request_id in request_ids:
            if (request := self._preparing.pop(request_id, None)) is not None:
                self._engine.runner.remove(request_id)
                self._aborted.append(RequestOutput(request_id, request.num_output_tokens, None, reason))
                continue
            output = self._engine.abort(request_id, reason)
            if output is not None:
                self._aborted.append(output)

    def _run_step(self) -> None:
        self._step += 1
        step = self._engine.step()
        self._wake_at = step.plan.wake_at
        failed = step.result.failed
        for request_id in failed:
            self._engine.abort(request_id)
            del self._live[request_id]
        self._send(step)  # which may say that they were admitted: their end comes after it
        for request_id, message in failed.items():
            self._fail(request_id, UNFIT_GRAMMAR.format(message), is_invalid=True)
        if self._step_log is not None:
            self._log(step)

    def _log(self, step: Step) -> None:
        assert self._step_log is not None, "there is no log of steps"
        stats, num_before = self._stats(step), self._num_added
        self._take_pending()  # what came while it ran
        record = msgspec.structs.asdict(stats) | {
            "forward_s": step.result.forward_s,
            "num_context_tokens": step.plan.num_context_tokens,
            "num_attended_tokens": step.plan.num_attended_tokens,
            "num_near_tokens": step.plan.num_near_tokens,
            "num_outputs": step.plan.num_outputs,
            "num_arrived": self._num_added - num_before,
        }
        self._step_log.write(msgspec.json.encode(record) + b"\n")

    def _announce(self, plan: StepPlan) -> None:
        """A long step says so before it begins: it is not a hang. What is held does not wait for one."""
        if plan.predicted_s > TELL_INTERVAL_S:
            self._outbox.flush()
        if plan.predicted_s > self._heartbeat_interval_s:
            self._outbox.put(Heartbeat(self._step, plan.predicted_s))

    def _send(self, step: Step | None) -> None:
        outputs, self._aborted = self._aborted, []
        if step is not None:
            outputs += step.outputs
        tokens = [Output(o.request_id, o.output_index, o.token) for o in outputs if o.token is not None]
        message = StepOutputs(
            outputs=tokens,
            admitted=step.plan.admitted if step else [],
            resumed=step.plan.resumed if step else [],
            finished=[
                _finished(self._live.pop(o.request_id), o.finish_reason) for o in outputs if o.finish_reason is not None
            ],
            stats=self._stats(step),
            progress=(progress := self._snapshot(step.plan.chunks if step else ())),
            served=None if progress is None else self._served(),
        )
        joined = message.admitted or message.resumed
        is_news = message.finished or joined or any(token.output_index == 0 for token in tokens)
        if step is not None and not is_news and self._ends_soon(step.step_s):
            self._outbox.hold(message)
        else:
            self._outbox.put(message)
            self._told_at = self._engine.clock.now()

    def _ends_soon(self, step_s: float) -> bool:
        """A step of this length: what there is to say may wait for it."""
        return self._engine.clock.now() + step_s < self._told_at + TELL_INTERVAL_S

    def _stats(self, step: Step | None) -> StepStats:
        scheduler = self._engine.scheduler
        now = StepStats(
            step=self._step,
            mode=scheduler.mode,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_used=scheduler.cache.num_used,
            num_cached_tokens=scheduler.cache.num_kept,
            host_bytes=scheduler.cache.host.num_bytes,
            num_pinned_seqs=scheduler.cache.num_pinned_seqs,
        )
        return now if step is None else _with_step(now, step)

    def _snapshot(self, chunks: Sequence[Chunk]) -> list[Progress] | None:
        """Who is live and why they wait: now and then, and whenever the last one has left."""
        now = self._engine.clock.now()
        if self._live and now - self._snapshot_at < SNAPSHOT_INTERVAL_S:
            return None
        self._snapshot_at = now
        scheduler = self._engine.scheduler
        num_step_tokens = {chunk.request_id: chunk.num_tokens for chunk in chunks}
        live = sorted(self._live.values(), key=lambda r: (r.status is not RequestStatus.RUNNING, r.arrival_at))
        return [
            Progress(
                r.request_id,
                r.status.name.lower(),
                r.num_prompt_tokens,
                r.num_computed_tokens,
                r.num_output_tokens,
                scheduler.wait_reason(r),
                num_step_tokens.get(r.request_id, 0),
                scheduler.num_kv_cells(r),
            )
            for r in live[:SNAPSHOT_MAX_REQUESTS]
        ]

    def _served(self) -> list[Served]:
        most = self._engine.scheduler.share.lately.most(SNAPSHOT_MAX_SOURCES)
        return [Served(fairness_class, source, round(value, 1)) for (fairness_class, source), value in most]


def _finished(request: Request, reason: FinishReason) -> Finished:
    return Finished(
        request.request_id,
        reason,
        request.admitted_at,
        request.first_token_at,
        request.num_output_tokens,
        request.num_preemptions,
        request.parked_s,
        request.num_cached_tokens,
        request.num_recomputed_tokens,
        request.num_moved_bytes,
        request.is_pinned,
        request.prefill_parked_s,
    )


def _with_step(stats: StepStats, step: Step) -> StepStats:
    plan, result = step.plan, step.result
    return msgspec.structs.replace(
        stats,
        mode=plan.mode,
        num_decode_tokens=plan.num_decode_tokens,
        num_prefill_tokens=plan.num_prefill_tokens,
        step_s=step.step_s,
        host_s=step.host_s,
        num_preemptions=step.num_preemptions,
        out_of_room=result.out_of_room,
        predicted_s=plan.predicted_s,
        num_idle_rows=plan.num_idle_rows,
        num_evictions=step.num_evictions,
        num_draft_tokens=result.num_draft_tokens,
        num_accepted_tokens=step.num_accepted_tokens,
    )
