"""The busy loop: take in messages, step, hand out what came of it; block when nothing is live."""

from __future__ import annotations

import logging

from homeai.engine.engine import Engine, Step
from homeai.engine.wire import Inbox, Outbox
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
    Shutdown,
    StepOutputs,
    StepStats,
    TokensDrawn,
)
from homeai.request import FinishReason, Request, RequestStatus
from homeai.scheduling.plan import RequestOutput, StepPlan

log = logging.getLogger("homeai.engine")

GROUP_SIZE = 2  # tokens
SNAPSHOT_INTERVAL_S = 0.5
SNAPSHOT_MAX_REQUESTS = 200


class EngineLoop:
    """Owns the engine. `run` returns on Shutdown; an exception out of it means that the engine is broken."""

    def __init__(self, engine: Engine, inbox: Inbox, outbox: Outbox, *, heartbeat_interval_s: float) -> None:
        self._engine = engine
        self._inbox = inbox
        self._outbox = outbox
        self._heartbeat_interval_s = heartbeat_interval_s
        self._step = 0
        self._aborted: list[RequestOutput] = []
        self._live: dict[str, Request] = {}
        self._snapshot_at = 0.0
        self._running = True
        self._tokens: list[Output] = []  # of the step under way, not sent yet
        self._step_started_at = 0.0
        self._said_admitted = False  # by an earlier message of this step
        engine.on_output = self._take_output

    def run(self) -> None:
        while self._running:
            self._take_messages()
            if self._engine.has_work:
                self._run_step()
            elif self._aborted:
                self._send(None)

    def _take_messages(self) -> None:
        """All that have come; blocks for one when there is nothing to compute, beating while it waits."""
        message = self._inbox.get_nowait()
        while message is None and not self._engine.has_work and not self._aborted:
            message = self._inbox.get(self._heartbeat_interval_s)
            if message is None:
                self._outbox.put(Heartbeat(self._step))
        while message is not None and self._running:
            self._handle(message)
            message = self._inbox.get_nowait()

    def _handle(self, message: Down) -> None:
        match message:
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
        )
        try:
            self._engine.add(request)
        except AssertionError as error:  # the front end should have refused it: this one fails, the loop goes on
            log.error("request %s cannot be served: %s", message.request_id, error)
            self._outbox.put(RequestFailed(message.request_id, str(error)))
            return
        self._live[request.request_id] = request

    def _abort(self, request_ids: list[str], reason: FinishReason) -> None:
        for request_id in request_ids:
            output = self._engine.abort(request_id, reason)
            if output is not None:
                self._aborted.append(output)

    def _run_step(self) -> None:
        self._step += 1
        self._step_started_at = self._engine.clock.now()
        self._said_admitted = False
        self._send(self._engine.step())

    def _take_output(self, plan: StepPlan, output: RequestOutput) -> None:
        """Tokens leave in small groups: the front end writes the first ones while we draw the others."""
        if len(self._tokens) == GROUP_SIZE:
            admitted = [] if self._said_admitted else plan.admitted
            self._outbox.put(TokensDrawn(outputs=self._tokens, admitted=admitted, started_at=self._step_started_at))
            self._tokens, self._said_admitted = [], True
        if output.token is not None:
            self._tokens.append(Output(output.request_id, output.output_index, output.token))

    def _send(self, step: Step | None) -> None:
        outputs, self._aborted = self._aborted, []
        if step is not None:
            outputs += step.outputs
        tokens, self._tokens = self._tokens, []
        self._outbox.put(
            StepOutputs(
                outputs=tokens,
                admitted=step.plan.admitted if step and not self._said_admitted else [],
                finished=[
                    _finished(self._live.pop(o.request_id), o.finish_reason)
                    for o in outputs
                    if o.finish_reason is not None
                ],
                stats=self._stats(step),
                progress=self._snapshot(),
            )
        )

    def _stats(self, step: Step | None) -> StepStats:
        scheduler = self._engine.scheduler
        return StepStats(
            step=self._step,
            mode=step.plan.mode if step else scheduler.mode,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_decode_tokens=step.plan.num_decode_tokens if step else 0,
            num_prefill_tokens=step.plan.num_prefill_tokens if step else 0,
            kv_used=scheduler.cache.num_used,
            step_s=step.step_s if step else 0.0,
            host_s=step.host_s if step else 0.0,
            num_preemptions=step.num_preemptions if step else 0,
            out_of_room=step.result.out_of_room if step else False,
        )

    def _snapshot(self) -> list[Progress] | None:
        """Who is live and why they wait: now and then, and whenever the last one has left."""
        now = self._engine.clock.now()
        if self._live and now - self._snapshot_at < SNAPSHOT_INTERVAL_S:
            return None
        self._snapshot_at = now
        reason = self._engine.scheduler.wait_reason
        live = sorted(self._live.values(), key=lambda r: (r.status is not RequestStatus.RUNNING, r.arrival_at))
        return [
            Progress(
                r.request_id,
                r.status.name.lower(),
                r.num_prompt_tokens,
                r.num_computed_tokens,
                r.num_output_tokens,
                None if r.status is RequestStatus.RUNNING else reason,
            )
            for r in live[:SNAPSHOT_MAX_REQUESTS]
        ]


def _finished(request: Request, reason: FinishReason) -> Finished:
    return Finished(
        request.request_id,
        reason,
        request.admitted_at,
        request.first_token_at,
        request.num_output_tokens,
        request.num_preemptions,
        request.parked_s,
    )
