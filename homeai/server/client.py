"""The front end's side of the engine: hands requests down, gives each its own outputs back.

A request is live here from `submit` until the engine says that it ended (or the engine is gone, or had not heard
of it yet); then, once, its `Record` goes to `on_finished`, at the latest when its reader has read its end: a stop
string in what is still unread cuts the counts. Nobody listening any more does not end it: `abort` does.

A live request is in the engine, or waits for it: held here (its class is paused, or the engine is about to end),
on its way back from an engine that is gone (`comeback.py`), or kept by the supervisor until an engine is ready. Its
class's `queue_timeout_s` bounds that wait, and the engine bounds the one inside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from homeai.errors import InvalidRequest, NotReady, PoisonedRequest, QueueTimeout, RequestError
from homeai.messages import (
    AbortRequests,
    AddRequest,
    Finished,
    Heartbeat,
    Output,
    RequestFailed,
    Served,
    StepOutputs,
    StepStats,
    Up,
)
from homeai.request import FinishReason, WaitReason
from homeai.server.admission import Door
from homeai.server.comeback import Comeback
from homeai.server.generation import Generation, Record
from homeai.server.stream import Stream
from homeai.server.supervisor import Supervisor

MAX_BUFFERED_TOKENS = 4096  # of a request whose client does not read


@dataclass(slots=True)
class _Live:
    generation: Generation
    stream: Stream
    patience: asyncio.TimerHandle | None = None  # ends it if it still waits for an engine then


@dataclass(eq=False, slots=True)
class EngineClient:
    """Submit, abort, and the demultiplexing of what comes up. Runs on the event loop only."""

    supervisor: Supervisor
    door: Door
    queue_timeouts_s: Mapping[str, float]  # by class; the engine's own begin when it hears of a request
    on_finished: Callable[[Record], None] = lambda record: None
    on_token_gap: Callable[[str, float], None] = lambda fairness_class, gap_s: None
    on_first_token: Callable[[str, float], None] = lambda fairness_class, ttft_s: None
    on_step: Callable[[StepStats], None] = lambda stats: None
    on_crash: Callable[[str], None] = lambda reason: None
    last_step: StepStats | None = None
    served: list[Served] = field(default_factory=list)  # as the engine said last
    _live: dict[str, _Live] = field(default_factory=dict)
    _unread: dict[str, Record] = field(default_factory=dict)  # ended, and its reader may still find a stop string
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _comeback: Comeback = field(default_factory=Comeback)
    _held: dict[str, None] = field(default_factory=dict)  # in the order in which they are let in
    _is_shut: bool = False
    _begun_may_end: bool = False  # although it is shut
    _paused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.supervisor.on_message = self.handle
        self.supervisor.on_lost = self.fail_all
        self.supervisor.on_died = self.recover

    @property
    def live(self) -> list[Generation]:
        return [live.generation for live in self._live.values()]

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def paused(self) -> frozenset[str]:
        """Classes whose requests wait, whatever there is room for."""
        return frozenset(self._paused)

    def waits(self, request_id: str) -> bool:
        """No engine has it."""
        return request_id in self._held or self.supervisor.has_unsent(request_id) or self._comeback.holds(request_id)

    # ---- down ------------------------------------------------------------------------------------

    def submit(
        self, adds: Sequence[AddRequest], *, api: str, client_request_id: str | None = None, key: str | None = None
    ) -> Stream:
        """Send all (they are of one class) or none. Raises `TooManyRequests` or `NotReady`; nothing queued then."""
        if not self.supervisor.takes_requests:
            raise self.supervisor.not_ready()
        fairness_class = adds[0].fairness_class
        now = time.monotonic()
        self.door.check(fairness_class, len(adds), now)
        stream = Stream([Generation(add, api, client_request_id, key) for add in adds], self._book)
        for generation in stream.generations:
            self._live[generation.add.request_id] = _Live(generation, stream)
            self.door.enter(fairness_class, now)
        self._let_in(stream.request_ids)
        for request_id in stream.request_ids:
            if self.waits(request_id):
                self._be_patient(request_id)
        return stream

    def _let_in(self, request_ids: Sequence[str]) -> None:
        """Those of one class, or of several."""
        free = [request_id for request_id in request_ids if not self._is_kept_out(request_id)]
        self._held.update(dict.fromkeys(request_id for request_id in request_ids if request_id not in free))
        if self._comeback.is_under_way and free:
            self._comeback.join(free)
        else:
            self._send(free)

    def _is_kept_out(self, request_id: str) -> bool:
        """A stream moves as a whole, and one that has begun is not stopped by a pause of its class."""
        live = self._live[request_id]
        if live.stream.has_begun:
            return self._is_shut and not self._begun_may_end
        return self._is_shut or live.generation.add.fairness_class in self._paused

    def _be_patient(self, request_id: str) -> None:
        """From now on it waits for an engine, for as long as its class does."""
        live = self._live[request_id]
        if live.patience is not None:
            live.patience.cancel()
        generation, fairness_class = live.generation, live.generation.add.fairness_class
        generation.stands_still(time.monotonic())
        generation.waited_for = WaitReason.PAUSED if fairness_class in self._paused else WaitReason.NOT_RESIDENT
        timeout_s = self.queue_timeouts_s[fairness_class]
        live.patience = asyncio.get_running_loop().call_later(
            timeout_s, self._end_waiting, [request_id], FinishReason.TIMEOUT
        )

    def abort(self, stream: Stream) -> None:
        """The client left: end whatever of its stream is live, in whatever state. A repeat is harmless."""
        self._abort([r for r in stream.request_ids if r in self._live])
        for request_id in stream.request_ids:
            self._book(request_id)

    async def idle(self) -> None:
        """Return when nothing is live."""
        while self._live:
            self._ended.clear()
            await self._ended.wait()

    def abort_all(self) -> None:
        """The server ends whatever is live; clients are told."""
        for live in self._live.values():
            live.generation.cut_off = True
        self._abort(list(self._live))
        for request_id in list(self._unread):
            self._book(request_id)

    def stop(self, stream: Stream, index: int, num_output_tokens: int) -> None:
        """A stop string matched: the generation finished there, whatever the engine drew meanwhile.

        Its end comes when the engine has said its part: it knows how much of the prompt was cached.
        """
        generation = stream.generations[index]
        generation.num_output_tokens = num_output_tokens
        generation.stopped = True
        request_id = generation.add.request_id
        if request_id in self._live:
            self.supervisor.send(AbortRequests([request_id], FinishReason.STOP))
        elif request_id in self._unread:
            self._unread[request_id] = replace(self._unread[request_id], finish_reason=FinishReason.STOP)

    # ---- the engine is about to end, or a class is to wait -----------------------------------------

    def shut(self, *, begun_may_end: bool) -> None:
        """Nobody gets into the engine until `open`; who comes waits. `begun_may_end`: but what has begun."""
        self._is_shut, self._begun_may_end = True, begun_may_end

    def hold_waiting(self) -> None:
        """While it is shut: whoever waits elsewhere waits here."""
        assert self._is_shut, "else they would be let in at once"
        waiting = [request_id for request_id in self._live if self.waits(request_id)]
        self.supervisor.withdraw(waiting)
        self._comeback.clear()
        self._held = dict.fromkeys(waiting)

    def open(self) -> None:
        """Let in who waited."""
        self._is_shut = False
        self._release()

    def pause(self, fairness_class: str) -> None:
        """What has begun goes on; what comes, or waits here, waits until `resume`."""
        self._paused.add(fairness_class)
        self.take_back(g.add.request_id for g in self.not_begun if g.add.fairness_class == fairness_class)

    def resume(self, fairness_class: str) -> None:
        self._paused.discard(fairness_class)
        self._release()

    def _release(self) -> None:
        held, self._held = list(self._held), {}
        self._let_in(held)

    @property
    def inside(self) -> list[Generation]:
        """Those that the engine has."""
        return [live.generation for request_id, live in self._live.items() if self._is_inside(request_id)]

    @property
    def not_begun(self) -> list[Generation]:
        """Those that the engine has, of streams of which it has computed nothing."""
        return [generation for generation in self.inside if not self._live[generation.add.request_id].stream.has_begun]

    @property
    def streams(self) -> list[Stream]:
        """Of all live requests, each once."""
        return list({id(live.stream): live.stream for live in self._live.values()}.values())

    def take_back(self, request_ids: Iterable[str]) -> None:
        """The engine gives them back, with the tokens that they have, and they wait here."""
        moving = [request_id for request_id in request_ids if self._is_inside(request_id)]
        for request_id in moving:
            self._live[request_id].generation.is_moving = True
        if moving:
            self.supervisor.send(AbortRequests(moving))

    async def emptied(self) -> None:
        """Return when the engine has nobody."""
        while self.inside:
            self._ended.clear()
            await self._ended.wait()

    def cut_off_inside(self) -> None:
        """The server ends what is in the engine; clients are told."""
        inside = [generation.add.request_id for generation in self.inside]
        for request_id in inside:
            self._live[request_id].generation.cut_off = True
        self._abort(inside)

    def replace(self, generation: Generation, add: AddRequest) -> None:
        """It waits, and asks for something else now."""
        assert self.waits(generation.add.request_id), "what an engine has is what it was given"
        generation.add = add

    def refuse(self, stream: Stream, error: RequestError) -> None:
        """It waits, and cannot be served any more."""
        self._end_waiting((r for r in stream.request_ids if r in self._live), FinishReason.ERROR, error)

    def refuse_waiting(self, error: RequestError) -> None:
        """Nobody comes for those who wait here."""
        self._end_waiting(list(self._held), FinishReason.ERROR, error)

    def _is_inside(self, request_id: str) -> bool:
        return not self.waits(request_id)

    def _give_back(self, request_id: str) -> None:
        """It is out of the engine, and stays live."""
        self._live[request_id].generation.is_moving = False
        self._passed(request_id)
        self._held[request_id] = None
        self._be_patient(request_id)
        self._ended.set()
        if not self._is_kept_out(request_id):
            self._release()

    def _abort(self, request_ids: list[str]) -> None:
        """Those that the engine never heard of end here and now, the others when it says so."""
        withdrawn = self._end_waiting(request_ids, FinishReason.ABORT)
        if known := [request_id for request_id in request_ids if request_id not in withdrawn]:
            for request_id in known:
                self._live[request_id].generation.is_leaving = True
            self.supervisor.send(AbortRequests(known))

    def _end_waiting(
        self, request_ids: Iterable[str], reason: FinishReason, error: RequestError | None = None
    ) -> list[str]:
        """Those of them that no engine has."""
        request_ids = list(request_ids)
        held = [request_id for request_id in request_ids if request_id in self._held]
        for request_id in held:
            del self._held[request_id]
        kept = [request_id for request_id in request_ids if self._comeback.withdraw(request_id)]
        withdrawn = held + kept + self.supervisor.withdraw(request_ids)
        for request_id in withdrawn:
            self._end(request_id, reason, error=error)
        return withdrawn

    # ---- up --------------------------------------------------------------------------------------

    def handle(self, message: Up) -> None:
        match message:
            case StepOutputs():
                self._take_step(message)
            case RequestFailed():
                error = InvalidRequest if message.is_invalid else RequestError
                self._end(message.request_id, FinishReason.ERROR, error=error(message.message))
            case Heartbeat():
                pass
            case _:
                raise AssertionError(f"unexpected message {type(message).__name__}")

    def fail_all(self, error: RequestError) -> None:
        """The engine is gone, and with it everything that was in it."""
        self.last_step = None
        self._comeback.clear()
        self._held.clear()
        for request_id in list(self._live):
            self._end(request_id, FinishReason.ERROR, error=error)

    # ---- from one engine to the next -------------------------------------------------------------

    def recover(self, reason: str, by_itself: bool) -> None:
        """The engine died and another one is coming: what was in it goes on there behind the tokens that it has."""
        self.last_step = None
        if self.supervisor.num_restarts:  # else it was sent away
            self.on_crash(reason)
        inside = []
        for request_id, live in list(self._live.items()):
            generation = live.generation
            if generation.stopped:
                self._end(request_id, FinishReason.STOP)
            elif generation.is_leaving:
                self._end(request_id, FinishReason.ABORT)
            elif request_id not in self._held and not self.supervisor.has_unsent(request_id):
                generation.is_moving = False
                inside.append(generation)
        inside.sort(key=lambda g: self.queue_timeouts_s[g.add.fairness_class])  # who has least patience comes first
        was_tried = not any(map(self.supervisor.has_unsent, self._comeback.on_trial))  # else nobody reached it
        blamed = self._comeback.engine_died(
            [g.add.request_id for g in inside if g.started_at is not None],
            [g.add.request_id for g in inside if g.started_at is None],
            by_itself=by_itself and was_tried,
        )
        if blamed is not None:
            message = f"this request ended the engine twice, and is not tried again: {reason}"
            self._end(blamed, FinishReason.ERROR, error=PoisonedRequest(message))
        self._let_back()
        for generation in inside:
            if (request_id := generation.add.request_id) in self._live:
                self._be_patient(request_id)
        self._ended.set()

    def _let_back(self) -> None:
        self._send(self._comeback.next())

    def _send(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            generation = self._live[request_id].generation
            add = generation.add
            if generation.output_token_ids:
                add = msgspec.structs.replace(add, output_token_ids=list(generation.output_token_ids))
                generation.was_parked = True
            self.supervisor.send(add)

    def _passed(self, request_id: str) -> None:
        if self._comeback.passed(request_id):
            self._let_back()

    def _take_step(self, message: StepOutputs) -> None:
        self.last_step = message.stats
        self._take_tokens(message)
        for finished in message.finished:
            generation = self._live[finished.request_id].generation
            is_given_back = generation.is_moving and not (generation.is_leaving or generation.stopped)
            if is_given_back and finished.finish_reason is FinishReason.ABORT:
                self._give_back(finished.request_id)
            else:
                self._end(finished.request_id, finished.finish_reason, finished=finished)
        for progress in message.progress or ():
            generation = self._live[progress.request_id].generation
            generation.progress = progress
            if progress.status == "preempted":
                generation.stands_still(time.monotonic())
            generation.waited_for = progress.wait_reason or generation.waited_for
        if message.served is not None:
            self.served = message.served
        self.on_step(message.stats)

    def _take_tokens(self, message: StepOutputs) -> None:
        now = time.monotonic()
        step_started_at = now - message.stats.step_s
        for request_id in message.admitted:
            generation = self._live[request_id].generation
            generation.goes_on(step_started_at)
            if generation.started_at is None:  # else it comes out of an engine that is gone
                generation.started_at = step_started_at
                self.door.start(generation.add.fairness_class, now)
        for request_id in message.resumed:
            generation = self._live[request_id].generation
            generation.was_parked = True
            generation.goes_on(step_started_at)
        for output in message.outputs:
            self._take_output(output, now)

    def _take_output(self, output: Output, now: float) -> None:
        live = self._live[output.request_id]
        generation, stream = live.generation, live.stream
        if generation.stopped:
            return
        assert output.output_index == generation.num_output_tokens, "tokens come in order, each once"
        generation.num_output_tokens += 1
        generation.output_token_ids.append(output.token.token_id)
        if generation.last_token_at is None:
            generation.first_token_at = now
            self.on_first_token(generation.add.fairness_class, now - generation.add.arrival_at)
        elif generation.was_parked:
            generation.was_parked = False  # that gap is told as parked time
        else:
            self.on_token_gap(generation.add.fairness_class, now - generation.last_token_at)
        generation.last_token_at = now
        self._passed(output.request_id)
        stream.push(output.request_id, output.token)
        if stream.num_buffered > MAX_BUFFERED_TOKENS:
            generation.cut_off = True
            self.abort(stream)

    def _end(
        self,
        request_id: str,
        reason: FinishReason,
        *,
        finished: Finished | None = None,
        error: RequestError | None = None,
    ) -> None:
        """The only place where a request stops being live."""
        live = self._live.pop(request_id)
        if live.patience is not None:
            live.patience.cancel()
        self._ended.set()
        self._passed(request_id)
        generation, stream = live.generation, live.stream
        fairness_class = generation.add.fairness_class
        self.door.leave(fairness_class, started=generation.started_at is not None)
        now = time.monotonic()
        generation.stands_still(now)
        if reason is FinishReason.TIMEOUT:
            why = "" if self.supervisor.ready else f"; {self.supervisor.not_ready().message}"
            waited_s = now - generation.add.arrival_at
            error = QueueTimeout(
                f"waited {waited_s:.0f} s in the queue, the longest for class {fairness_class}{why}",
                retry_after_s=self.door.retry_after_s(fairness_class, now),
            )
        if reason is FinishReason.ABORT and generation.cut_off:
            error = NotReady("the server ended this request before it was complete", retry_after_s=5.0)
        if finished is not None:
            generation.num_cached_tokens = finished.num_cached_tokens
        if generation.stopped:
            reason, error = FinishReason.STOP, None  # its reader asked for it, and has all it wanted
        self._unread[request_id] = Record(generation, reason, error, now, finished)
        if error is not None:
            stream.fail(error)
        else:
            stream.finish(request_id, reason)
        is_complete = reason in (FinishReason.STOP, FinishReason.LENGTH) and not generation.stopped
        if not (is_complete and stream.has_unread_tokens(request_id)):
            self._book(request_id)

    def _book(self, request_id: str) -> None:
        record = self._unread.pop(request_id, None)
        if record is not None:
            self.on_finished(record)
