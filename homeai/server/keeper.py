"""Keeps the model where it should be: asks `residency.py` whenever something changed, and has it done.

    arrivals, ends, the owner's words, the GPU's other users ─▶ Keeper ─▶ decide ─▶ Supervisor (the state, the child)
                                                                               └──▶ EngineClient (who may go on)

One task does one thing at a time: to send the model away, or to put another one in its place, takes as long as
requests may take to end. What is said meanwhile counts afterwards. Only callers of POSTs come here: looking at the
server never loads the model, and never keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from homeai.clock import Clock, MonotonicClock
from homeai.config import ClassConfig, ResidencyConfig
from homeai.errors import NotReady, Yielded
from homeai.hardware import Probe
from homeai.server.client import EngineClient
from homeai.server.pressure import Pressure, reading_of
from homeai.server.residency import Aim, Facts, Needs, Verdict, Wish, decide, opens_in_s
from homeai.server.supervisor import AWAY, State, Supervisor

log = logging.getLogger("homeai.residency")

WATCH_S = 1.0  # between two looks at who uses the GPU
ABORT_S = 5.0  # for the engine to say that what was cut off has ended
UNKNOWN_RETRY_S = 60.0  # nobody knows when the owner will want the device back
CANNOT_WATCH = "who uses the GPU cannot be known here: only `homeai yield` makes room for others"
STATES = {Aim.SLEEPING: State.SLEEPING, Aim.YIELDED: State.YIELDED}
START = ""  # the source, as it were, of the daemon's own start

Switch = Callable[[], Awaitable[None]]


def local_time() -> datetime:
    return datetime.now().astimezone()


class Keeper:
    """The one writer of what owner and clients want of the model's residency. Runs on the event loop."""

    def __init__(
        self,
        supervisor: Supervisor,
        client: EngineClient,
        settings: ResidencyConfig,
        classes: Mapping[str, ClassConfig],
        probe: Probe,
        *,
        clock: Clock | None = None,
        local: Callable[[], datetime] = local_time,
    ) -> None:
        self._supervisor = supervisor
        self._client = client
        self._settings = settings
        self._classes = classes
        self._probe = probe
        self._clock = clock or MonotonicClock()
        self._local = local
        self._wish: Wish | None = None
        self._wish_until = math.inf
        self._needs = Needs(settings.idle_timeout_s)
        self._pressure = Pressure(settings)
        self._watch_at = -math.inf
        self._cannot_watch = False  # as was said in the log
        self._switch: Switch | None = None
        self._news = asyncio.Event()
        self._is_closed = False
        self.fall_back: Switch | None = None  # when the model that loads now cannot be loaded
        self._start_counts = settings.policy == "idle"  # as a use, from when the model is there
        if self._start_counts:
            self._needs.came(START, self._clock.now())
        self.keep_warm: Callable[[], None] = lambda: None  # the model's file, while it is away
        supervisor.back_in_s = self.back_in_s

    # ---- what is asked ---------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        return decide(
            self._settings,
            Facts(
                now=self._clock.now(),
                local=self._local(),
                num_live=self._client.num_live,
                needed_until=self._needs.until,
                wish=self._wish,
                wish_until=self._wish_until,
                pressure=self._pressure.reason,
            ),
        )

    @property
    def is_held_away(self) -> bool:
        """By the owner, or by other programs: work that nobody waits for does not bring the model back."""
        return self._wish is Wish.UNLOAD or self.verdict().aim is Aim.YIELDED

    @property
    def notes(self) -> list[str]:
        """What the owner should know."""
        paused = [
            f"{name} is paused: its requests wait (`homeai resume {name}`)" for name in sorted(self._client.paused)
        ]
        return [*paused, CANNOT_WATCH] if self._cannot_watch else paused

    @property
    def others_bytes(self) -> int | None:
        """What other programs hold of the GPU, as it was seen last; None while nobody looks, or can."""
        return self._pressure.others_bytes if self._watches_gpu and not self._cannot_watch else None

    @property
    def honours_keep_alive(self) -> bool:
        return self._settings.policy != "pinned" and self._wish is not Wish.PIN

    @property
    def expires_in_s(self) -> float | None:
        """When the model leaves if nobody asks any more; None: not for that reason."""
        if not self.honours_keep_alive or self._needs.until == math.inf or self._supervisor.ready is None:
            return None
        return max(0.0, self._needs.until - self._clock.now())

    @property
    def opens_in_s(self) -> float | None:
        """How long whoever asks now is refused by the schedule; None: he is not."""
        if self.verdict().aim is Aim.RESIDENT:
            return None
        return opens_in_s(self._settings, self._local())

    def back_in_s(self) -> float | None:
        """When the model comes back, as far as that is known."""
        if (opens_s := self.opens_in_s) is not None:
            return opens_s
        if self._wish is Wish.YIELD:
            return UNKNOWN_RETRY_S if self._wish_until == math.inf else max(1.0, self._wish_until - self._clock.now())
        return self._pressure.ends_in_s if self._pressure.reason is not None else None

    # ---- clients ---------------------------------------------------------------------------------

    def arrive(self, source: str, fairness_class: str, keep_alive_s: float | None = None) -> None:
        """A request comes that needs the model, which is loaded for it if need be. Raises `NotReady` where it may not
        wait for that: nothing is queued then."""
        verdict = self.verdict()
        if verdict.aim is Aim.YIELDED and self._classes[fairness_class].when_yielded == "refuse":
            raise Yielded(
                f"the model is away: {verdict.reason}", retry_after_s=self.back_in_s() or self._settings.gpu_quiet_s
            )
        if (opens_s := self.opens_in_s) is not None:
            raise NotReady(f"the model is away: {verdict.reason}", retry_after_s=opens_s)
        if self._wish is Wish.UNLOAD:
            self._wish = None
        self._needs.came(source, self._clock.now(), keep_alive_s)
        if self._supervisor.state is State.SLEEPING and self._switch is None and verdict.aim is not Aim.YIELDED:
            self._supervisor.wake()
        self._news.set()

    def ended(self, source: str) -> None:
        """A request of its is over: how long the model stays for it counts from now."""
        self._needs.ended(source, self._clock.now())
        self._news.set()

    def may_leave(self, source: str) -> None:
        """It does not need the model any more (keep_alive 0, without a question)."""
        self._needs.came(source, self._clock.now(), 0.0)
        self._news.set()

    async def ensure_ready(self, source: str, fairness_class: str, keep_alive_s: float | None, wait_s: float) -> None:
        """Load the model if need be and wait for it. Raises `NotReady`, after `wait_s` at the latest."""
        self.arrive(source, fairness_class, keep_alive_s)
        try:
            async with asyncio.timeout(wait_s):
                while self._supervisor.ready is None:
                    if self._supervisor.state is State.FAILED or not self._supervisor.takes_requests:
                        raise self._supervisor.not_ready()
                    await self._supervisor.changed()
        except TimeoutError:
            raise self._supervisor.not_ready() from None

    # ---- the owner -------------------------------------------------------------------------------

    def load(self) -> None:
        """The model is wanted, whatever was said before; from here on the policy counts again."""
        self._want(None)
        self._needs.came("", self._clock.now())
        self._supervisor.wake()

    def pin(self) -> None:
        """It stays, whatever the policy says, until the owner says otherwise."""
        self._want(Wish.PIN)
        self._supervisor.wake()

    def unload(self) -> None:
        """Until somebody asks for it. What clients wanted before does not count any more."""
        self._needs.forget()
        self._want(Wish.UNLOAD)

    def give_device_away(self, for_s: float | None = None) -> None:
        """Until `load` or `pin`, or for so long."""
        self._want(Wish.YIELD, math.inf if for_s is None else self._clock.now() + for_s)

    def pause(self, fairness_class: str) -> None:
        self._client.pause(fairness_class)
        log.info("paused: %s; its requests wait", fairness_class)

    def resume(self, fairness_class: str) -> None:
        self._client.resume(fairness_class)
        log.info("resumed: %s", fairness_class)

    def switch(self, switch: Switch) -> None:
        """Have it done as soon as nothing else is under way. Raises `NotReady` while another one waits."""
        if self._switch is not None:
            raise NotReady("the model is being reloaded already", retry_after_s=5.0)
        self._switch = switch
        self._news.set()

    def _want(self, wish: Wish | None, until: float = math.inf) -> None:
        self._wish, self._wish_until = wish, until
        if wish in (None, Wish.PIN):
            self._pressure.accept()
        self._news.set()

    # ---- doing it --------------------------------------------------------------------------------

    def look(self) -> None:
        """Something changed: a state, a request's end."""
        self._news.set()

    async def run(self) -> None:
        while not self._is_closed:
            self._news.clear()
            if self._clock.now() >= self._watch_at:
                await self._watch_gpu()
                self._watch_at = self._clock.now() + WATCH_S
            if self._supervisor.ready is not None:
                self.fall_back = None
                if self._start_counts:
                    self._start_counts = False
                    self._needs.ended(START, self._clock.now())
            elif self._supervisor.state is State.FAILED and self.fall_back is not None:
                log.error("the model before it comes back")
                self._switch, self.fall_back = self.fall_back, None
            if self._switch is not None:
                await self._do_switch(self._switch)
            verdict = self.verdict()
            await self._enact(verdict)
            waits_s = [WATCH_S] if self._watches_gpu else []
            if verdict.look_in_s is not None:
                waits_s.append(verdict.look_in_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(waits_s, default=None)):
                    await self._news.wait()

    def close(self) -> None:
        """The server ends: what is in the engine may, too; nobody comes for those who wait."""
        self._is_closed = True
        self._news.set()
        self._client.refuse_waiting(self._supervisor.not_ready())

    async def _do_switch(self, switch: Switch) -> None:
        try:
            await switch()
        finally:
            self._switch = None
            self._client.open()

    async def _enact(self, verdict: Verdict) -> None:
        state = self._supervisor.state
        if verdict.aim is Aim.RESIDENT:
            if state in AWAY:
                log.info("loading the model: %s", verdict.reason)
                self._supervisor.wake()
            return
        target = STATES[verdict.aim]
        is_owners = verdict.aim is Aim.YIELDED or self._wish is Wish.UNLOAD
        is_loading = state in (State.LOADING, State.WARMING)  # which nobody but the owner ends
        may_leave = state is State.RESIDENT or state in AWAY or (is_owners and is_loading)
        if may_leave and state is not target:
            log.info("the model leaves (%s): %s", target, verdict.reason)
            await self._leave(target, verdict.reason)

    async def _leave(self, target: State, reason: str) -> None:
        client, supervisor, settings = self._client, self._supervisor, self._settings
        if supervisor.ready is not None:
            supervisor.leave()
            if target is State.YIELDED:
                client.shut(begun_may_end=False)
                staying = set(settings.finish_classes)
                client.take_back(g.add.request_id for g in client.inside if g.add.fairness_class not in staying)
                await self._empty(settings.finish_timeout_s)
            else:
                client.shut(begun_may_end=True)
                await self.drain(settings.drain_timeout_s)
        try:
            await supervisor.rest(target, reason)
        finally:
            client.open()
        if target is State.YIELDED:
            await asyncio.to_thread(self.keep_warm)

    async def drain(self, timeout_s: float, *, cut_off: bool = True) -> None:
        """What is in the engine may end; what does not in time is cut off, if that is wanted."""
        if await self._empty(timeout_s) or not cut_off:
            return
        log.warning("%d request(s) did not end in %.0f s and are cut off", len(self._client.inside), timeout_s)
        self._client.cut_off_inside()
        await self._empty(ABORT_S)

    async def _empty(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.emptied()
        except TimeoutError:
            return False
        return True

    # ---- the GPU's other users -------------------------------------------------------------------

    @property
    def _watches_gpu(self) -> bool:
        if self._settings.share_gpu != "auto":
            return self._settings.share_gpu == "on"
        return self._supervisor.device == "cuda"

    async def _watch_gpu(self) -> None:
        ready = self._supervisor.ready
        if not self._watches_gpu:
            return
        gpu, processes = await asyncio.to_thread(lambda: (self._probe.gpu(), self._probe.gpu_processes()))
        pid = self._supervisor.engine_pid
        if gpu is None or processes is None or self._is_a_stranger(pid, [process.pid for process in processes]):
            if not self._cannot_watch:
                log.warning(CANNOT_WATCH)
            self._cannot_watch = True
            return
        self._cannot_watch = False
        our_bytes = ready.model_bytes + ready.kv_bytes if ready is not None else None
        if self._pressure.see(reading_of(gpu, processes, {pid or 0}), self._clock.now(), our_bytes=our_bytes):
            if self._pressure.reason is None:
                log.info("the GPU is free again")
        elif self._pressure.is_ending and self._supervisor.state is State.YIELDED:
            await asyncio.to_thread(self.keep_warm)

    def _is_a_stranger(self, pid: int | None, pids: list[int]) -> bool:
        """Of a resident model on a GPU that nobody lists: in a container processes may have other numbers."""
        ready = self._supervisor.ready
        return ready is not None and ready.device == "cuda" and pid not in pids
