"""The engine child's life: start, ready, heartbeat, restart, stop. Single owner of the residency state.

    STOPPED → LOADING → WARMING → RESIDENT → DRAINING → STOPPED     the server ends
                 ↑                    |          ├────→ SLEEPING    nobody needs the model now
                 |                    |          ├────→ YIELDED     others need its device
                 |                    |          └────→ LOADING     another model, or the same anew
                 ├────────────────────┘  the child died: back-off, again
                 ├── SLEEPING, YIELDED   `wake`
              FAILED                     the file cannot be loaded, or it died too often; `wake` tries again

WARMING lasts until the engine has computed the pins (`warmup.py`). SLEEPING and YIELDED have no child: its memory is
free for sure, and its device idles as deeply as it can. When to go there and back is `residency.py`'s to say.

A device that is not there yet, or whose memory is somebody else's now, is no death: LOADING goes on, with the
reason in `failure`, and a new child looks again from time to time.

Others read `state`, send messages and wait for `ensure_ready()`; nobody else starts or ends the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from homeai.clock import Clock, MonotonicClock
from homeai.config import ResidencyConfig
from homeai.errors import EngineDied, GPUUnavailable, NotReady
from homeai.messages import (
    AddRequest,
    Down,
    EngineFailed,
    EngineReady,
    Heartbeat,
    LoadProgress,
    Shutdown,
    StepOutputs,
    Up,
)
from homeai.server.startup import Startup
from homeai.server.warmup import Pin, WarmUp

log = logging.getLogger("homeai.supervisor")

PROGRESS_INTERVAL_S = 2.0
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)  # after a death by itself; whom somebody killed is not at fault
LOOK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # at a device that is unavailable
STEP_MARGIN = 4  # a step that takes so many times what it was to take is hung
WATCH_INTERVAL_S = 1.0


class Child(Protocol):
    """One incarnation of the engine, already started."""

    @property
    def pid(self) -> int: ...

    def messages(self) -> AsyncIterator[Up]:
        """Everything it says, until it closes its side."""
        ...

    def send(self, message: Down) -> None:
        """Never blocks; lost when it is gone."""
        ...

    def kill(self) -> None: ...

    async def wait(self) -> int:
        """End it for sure; its exit code."""
        ...


class State(enum.StrEnum):
    STOPPED = "stopped"
    LOADING = "loading"
    WARMING = "warming"
    RESIDENT = "resident"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    YIELDED = "yielded"
    FAILED = "failed"


AWAY = (State.SLEEPING, State.YIELDED)


@dataclass(frozen=True, slots=True)
class Death:
    """Of a child, that nobody wanted. `by_itself`: it was not killed from outside."""

    at: float
    by_itself: bool


class Supervisor:
    """`on_message` gets what the engine says. Each incarnation's end is told once: by `on_died` when the next one will
    go on with what was in it (the reason, and whether it died by itself or was killed by somebody), else by `on_lost`,
    with what clients are told.
    """

    def __init__(
        self,
        start_child: Callable[[], Child],
        residency: ResidencyConfig,
        clock: Clock | None = None,
        warm_up: WarmUp | None = None,
    ) -> None:
        self._start_child = start_child
        self._residency = residency
        self._clock = clock or MonotonicClock()
        self.warm_up = warm_up or WarmUp()
        self._child: Child | None = None
        self._loaded: EngineReady | None = None  # what the child said of itself; `ready` once it is warm
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # nothing to wait for: no load is under way or follows at once
        self._change = asyncio.Event()
        self._stopping = asyncio.Event()
        self._nudge = asyncio.Event()  # ends any pause between two children
        self._is_closing = False  # DRAINING ends with STOPPED
        self._left = asyncio.Event()
        self._leaving_for: State | None = None  # the child ends on purpose, and this is what comes then
        self._unsent: dict[str, AddRequest] = {}  # by id; waits for the engine to be ready
        self._longest_step_s = 0.0  # that this child took or announced
        self._was_hung = False  # this child, so that it was killed
        self._num_looks = 0  # at a device that is unavailable
        self._deaths: deque[Death] = deque()  # of the last `restart_window_s`
        self._heard_at = self._reported_at = self._spawned_at = self._loaded_at = self._clock.now()
        self._launch_s = 0.0
        self.state = State.STOPPED
        self.progress: LoadProgress | None = None
        self.ready: EngineReady | None = None
        self.failure: str | None = None
        self.num_restarts = 0
        self.num_loads = 0
        self.startup: Startup | None = None  # how long what is resident took to be so
        self.device: str | None = None  # what `auto` came to: a restart must not end on another one
        self.model_path: str | None = None  # another one than the settings'
        self.away_reason: str | None = None  # why it is SLEEPING or YIELDED
        self.back_in_s: Callable[[], float | None] = lambda: None  # of it, when that is known
        self.on_message: Callable[[Up], None] = lambda message: None
        self.on_lost: Callable[[NotReady], None] = lambda error: None
        self.on_died: Callable[[str, bool], None] = lambda reason, by_itself: None
        self.on_state: Callable[[State], None] = lambda state: None

    # ---- for everybody ---------------------------------------------------------------------------

    @property
    def engine_pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def is_alive(self) -> bool:
        """The engine was heard of within its time, or is not expected to speak."""
        if self.state in (State.RESIDENT, State.DRAINING):
            return self._silent_s < self._silence_limit_s
        return self.state is not State.FAILED

    @property
    def takes_requests(self) -> bool:
        """What is sent while there is no engine waits for the next, unless nobody knows when the device will be there.
        Who may wait while the device is lent is for `keeper.py` to say."""
        if self._is_closing:
            return False
        return self.state not in (State.STOPPED, State.FAILED) and not self.is_unavailable

    @property
    def is_unavailable(self) -> bool:
        """The device was looked for and is not there, or has no room."""
        return self._num_looks > 0

    async def ensure_ready(self) -> EngineReady:
        """Join the load under way. Raises `NotReady` when there is nothing to wait for."""
        await self._settled.wait()
        if self.ready is None:
            raise self.not_ready()
        return self.ready

    async def begun(self) -> None:
        """Join the start: until the model is resident, or away because nobody needs it. Raises `NotReady` when it
        is neither."""
        await self._settled.wait()
        if self.ready is None and self.state not in AWAY:
            raise self.not_ready()

    async def changed(self) -> None:
        """Return when the state is another one."""
        change = self._change
        await change.wait()

    def not_ready(self) -> NotReady:
        if self.is_unavailable:
            return GPUUnavailable(f"the model's device is not available: {self.failure}", retry_after_s=30.0)
        retry_after_s = 5.0 if self.state is State.DRAINING else 30.0
        if self.state in AWAY:
            retry_after_s = self.back_in_s() or retry_after_s
        why = self.failure or (self.away_reason if self.state in AWAY else None)
        reason = f": {why}" if why else ""
        return NotReady(f"the model is not available ({self.state}){reason}", retry_after_s=retry_after_s)

    def send(self, message: Down) -> None:
        """To the engine, in order. Requests are kept until it is ready; there is nothing else to tell it before."""
        if self.ready is not None and self._child is not None:
            self._child.send(message)
        elif isinstance(message, AddRequest):
            self._unsent[message.request_id] = message

    def pin(self, pins: Sequence[Pin]) -> None:
        """What every engine computes first, known as soon as the vocabulary is read."""
        self.warm_up.know(pins)
        self._warm()

    def has_unsent(self, request_id: str) -> bool:
        """No engine has heard of it yet."""
        return request_id in self._unsent

    def withdraw(self, request_ids: Iterable[str]) -> list[str]:
        """Those of the requests that the engine has not heard of, which it never will now."""
        return [request_id for request_id in request_ids if self._unsent.pop(request_id, None) is not None]

    # ---- life ------------------------------------------------------------------------------------

    def spawn(self, launch_s: float = 0.0) -> None:
        """Start the child. May run before there is an event loop: loading overlaps our own imports. `launch_s`: what
        our own process took to come here."""
        self._set_state(State.LOADING)
        self._launch_s, self._spawned_at = launch_s, self._clock.now()
        self._child = self._start_child()

    def start(self) -> asyncio.Task[None]:
        """Begin to supervise, in the running event loop; the task ends with `stop`, or by a bug."""
        self._task = asyncio.create_task(self._run(), name="supervisor")
        return self._task

    def give_up(self, reason: str) -> None:
        """The model cannot be served for a reason that lies outside the child."""
        if self.state is not State.FAILED:
            self._fail(reason)
            if self._child is not None:
                self._child.kill()

    def drain(self) -> None:
        """Nothing new is to come until the end; what is live goes on."""
        was_away = self.state in AWAY
        if self.state is not State.FAILED:
            self._set_state(State.DRAINING)
        self._is_closing = True
        self._settled.set()
        if was_away:
            self._lose(self.not_ready())  # no engine comes for them any more

    def leave(self) -> None:
        """The child will end on purpose, with `rest`; what is in it may go on until then."""
        self._set_state(State.DRAINING)

    async def rest(self, state: State, reason: str) -> None:
        """End the child, and wait until it is gone. `state` comes then, until `wake`; LOADING: the next child at once.

        What is in it goes on in the next one (`on_died`). Nothing happens when the server itself ends.
        """
        assert state in (*AWAY, State.LOADING), "there is no other way to be without a child and go on"
        if self._is_closing:
            return  # what is live may end, and the child does then
        self.away_reason = reason
        self._leaving_for = state
        self._left.clear()
        self._nudge.set()
        child = self._child
        if child is not None:
            child.send(Shutdown())
            await child.wait()
        await self._left.wait()

    def start_away(self, state: State, reason: str) -> None:
        """Instead of `spawn`: nobody needs the model yet."""
        self.away_reason = reason
        self._set_state(state)

    def wake(self) -> None:
        """Load, from SLEEPING, YIELDED or FAILED. Otherwise it is under way, or follows, already."""
        if self.state is State.FAILED:
            self._deaths.clear()
            self.failure = None
        if self.state in (*AWAY, State.FAILED):
            self._set_state(State.LOADING)
        self._nudge.set()

    async def stop(self) -> None:
        """End the child and wait until it is gone."""
        self._is_closing = True
        self._stopping.set()
        self._nudge.set()
        if self._child is not None:
            self._child.send(Shutdown())
            await self._child.wait()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._set_state(State.STOPPED)

    async def _run(self) -> None:
        watchdog = asyncio.create_task(self._watch())
        try:
            while not self._stopping.is_set():
                if self._leaving_for is not None:
                    self._lie_down(self._leaving_for)
                if self._child is None and self.state in (*AWAY, State.FAILED):
                    await self._nudged()
                    continue
                if self._child is None:
                    self.spawn()
                await self._follow_child()
        finally:
            watchdog.cancel()

    async def _nudged(self) -> None:
        self._nudge.clear()
        await self._nudge.wait()

    def _lie_down(self, state: State) -> None:
        """There is no child any more, on purpose."""
        self._leaving_for = None
        self._num_looks = 0
        self.failure = None
        self._set_state(state)
        self.on_died(self.away_reason or state, False)
        self._left.set()

    async def _follow_child(self) -> None:
        """Read one incarnation to its end, and decide what comes after it."""
        child = self._child
        assert child is not None, "spawn comes first"
        last_words: EngineFailed | None = None
        self._heard_at = self._clock.now()
        self._longest_step_s = 0.0
        self._was_hung = False
        async for message in child.messages():
            self._heard_at = self._clock.now()
            if isinstance(message, EngineFailed):
                last_words = message
            elif self.state is not State.FAILED:  # given up, and what was on its way does not change that
                self._take(message)
        exit_code = await child.wait()
        self._child = self._loaded = self.ready = self.progress = None
        if self.state is State.FAILED:
            return  # given up: `on_lost` was called then
        if self._stopping.is_set():
            self._lose(self.not_ready())
        elif self._leaving_for is not None:
            pass  # as `_run` does it, for this child or none
        elif last_words is not None and last_words.unavailable:
            await self._after_look(last_words.message)
        else:
            await self._after_death(last_words, exit_code)

    def _take(self, message: Up) -> None:
        if isinstance(message, LoadProgress):
            self._report(message)
            self._set_state(State.LOADING if message.fraction < 1 else State.WARMING)
        elif isinstance(message, EngineReady):
            self._loaded, self._loaded_at = message, self._clock.now()
            self.warm_up.begin()
            self._warm()
        else:
            if isinstance(message, StepOutputs):
                self._longest_step_s = max(self._longest_step_s, message.stats.step_s)
            elif isinstance(message, Heartbeat):
                self._longest_step_s = max(self._longest_step_s, message.predicted_s)
            if (rest := self.warm_up.take(message)) is not None:
                self.on_message(rest)
            self._warm()

    def _warm(self) -> None:
        """Compute what is to be in the engine before it is everybody's, or anew when it is idle."""
        if self._child is None or self._loaded is None or not self.warm_up.is_known:
            return
        request = self.warm_up.next(self._clock.now())
        if request is not None:
            self._child.send(request)
        if self.ready is not None:
            return
        if (progress := self.warm_up.progress) is not None:
            self._report(progress)
            self._set_state(State.WARMING)
        else:
            self._become_resident(self._loaded)

    def _report(self, progress: LoadProgress) -> None:
        """A long load shows that it moves; a short one says nothing."""
        if self.progress is None:
            self._reported_at = self._clock.now()
        elif self._clock.now() - self._reported_at >= PROGRESS_INTERVAL_S:
            self._reported_at = self._clock.now()
            log.info("loading: %s, %.0f %%", progress.stage, 100 * progress.fraction)
        self.progress = progress

    def _become_resident(self, message: EngineReady) -> None:
        if self.num_restarts:
            log.info("the engine is back after %d restart(s)", self.num_restarts)
            self.num_restarts = 0
        if self._num_looks:
            log.info("the device is available again")
            self._num_looks = 0
        self.ready, self.progress, self.failure, self.away_reason = message, None, None, None
        self.device = message.device
        self.num_loads += 1
        self.startup = self._measured(message)
        log.info("resident after %s", self.startup)
        self._set_state(State.RESIDENT)
        unsent, self._unsent = self._unsent, {}
        for request in unsent.values():
            self.send(request)

    def _measured(self, message: EngineReady) -> Startup:
        now = self._clock.now()
        launch = {"launch": self._launch_s} if self._launch_s else {}
        pins = {"pins": now - self._loaded_at}
        return Startup(self._launch_s + now - self._spawned_at, launch | message.parts_s | pins)

    async def _after_death(self, last_words: EngineFailed | None, exit_code: int) -> None:
        """Give up, or finish draining, or go on with a new child."""
        reason = last_words.message if last_words else f"the engine process ended with exit code {exit_code}"
        death = Death(self._clock.now(), by_itself=exit_code != -signal.SIGKILL or self._was_hung)
        if (last_words is not None and last_words.fatal) or self._dies_too_often(death):
            self._fail(reason)
            return
        log.error("the engine died: %s", reason)
        if self._is_closing:
            self._lose(EngineDied(f"the engine died: {reason}", retry_after_s=5.0))
            self._stopping.set()
            return
        self.num_restarts += 1
        self._set_state(State.LOADING)
        self.on_died(reason, death.by_itself)
        if death.by_itself:
            await self._pause(BACKOFF_S, sum(death.by_itself for death in self._deaths))

    async def _after_look(self, reason: str) -> None:
        """The device cannot take the model now. Who waits is told so, and it is tried again, more and more seldom."""
        self._num_looks += 1
        if reason != self.failure:
            self.failure = reason
            log.warning("the device is unavailable, and looked at again from time to time: %s", reason)
            self.on_state(self.state)
        self._set_state(State.LOADING)
        self._lose(self.not_ready())
        if self._is_closing:
            self._stopping.set()
        else:
            await self._pause(LOOK_AGAIN_S, self._num_looks)

    async def _pause(self, lengths_s: Sequence[float], count: int) -> None:
        """Before the next child: the `count`-th length, at most the last; `stop`, `rest` and `wake` end it."""
        if self._stopping.is_set() or self._leaving_for is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(lengths_s[min(count, len(lengths_s)) - 1]):
                await self._nudged()

    def _dies_too_often(self, death: Death) -> bool:
        self._deaths.append(death)
        while self._deaths[0].at < death.at - self._residency.restart_window_s:
            self._deaths.popleft()
        return len(self._deaths) > self._residency.max_restarts

    def _fail(self, reason: str) -> None:
        self.ready, self.failure = None, reason
        log.error("the model cannot be served: %s", reason)
        self._set_state(State.FAILED)
        self._lose(self.not_ready())

    def _lose(self, error: NotReady) -> None:
        self._unsent.clear()
        self.on_lost(error)

    # ---- silence ---------------------------------------------------------------------------------

    @property
    def _silent_s(self) -> float:
        return self._clock.now() - self._heard_at

    @property
    def _silence_limit_s(self) -> float:
        """The loop is silent while it computes: a long step needs as long as it needs."""
        return max(self._residency.heartbeat_timeout_s, STEP_MARGIN * self._longest_step_s)

    async def _watch(self) -> None:
        """A child that says nothing for too long is hung: end it, and `_follow_child` sees it end."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            limit_s = self._silence_limit_s if self.ready else self._residency.load_timeout_s
            if self._child is not None and self._silent_s > limit_s:
                log.error("the engine was not heard of for %.0f s (%s): killing it", limit_s, self.state)
                self._heard_at = self._clock.now()
                self._was_hung = True
                self._child.kill()

    def _set_state(self, state: State) -> None:
        if state is self.state or (self._is_closing and state not in (State.STOPPED, State.FAILED)):
            return
        self.state = state
        self._change.set()
        self._change = asyncio.Event()
        if state in (State.LOADING, State.WARMING, State.DRAINING):
            self._settled.clear()
        else:
            self._settled.set()
        log.info("state: %s", state)
        self.on_state(state)
