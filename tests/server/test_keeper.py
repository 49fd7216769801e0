"""What is decided is done: by the owner's word, a request, the clock, a game; with a child that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime

import pytest

from homeai import config
from homeai.clock import VirtualClock
from homeai.errors import NotReady, Yielded
from homeai.hardware import GPU, GPUProcess
from homeai.messages import AbortRequests, EngineFailed
from homeai.request import FinishReason
from homeai.server import keeper as keeper_module
from homeai.server.admission import Door
from homeai.server.client import EngineClient
from homeai.server.keeper import Keeper
from homeai.server.stream import Stream
from homeai.server.supervisor import State, Supervisor
from tests.server.fakes import READY, FakeChild, FakeProbe, finished, make_add, output, step, until

GIB = 2**30
NIGHT = datetime(2030, 5, 1, 3, 0)


class Machine(FakeProbe):
    """Its GPU is used by whom the test says."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.others: list[GPUProcess] = []

    def gpu(self) -> GPU | None:
        return GPU("H200", sum(p.used_bytes for p in self.others), 140 * GIB, 0.5)

    def gpu_processes(self) -> list[GPUProcess] | None:
        engine = [GPUProcess(1, "engine", 8 * GIB, 1.0)] if self._supervisor.engine_pid else []
        return [*engine, *self.others]


class Home:
    def __init__(self, *settings: str) -> None:
        overrides = [tuple(setting.split("=", 1)) for setting in settings]
        self.config = config.load(None, env={}, overrides=overrides)  # type: ignore[arg-type]
        self.clock = VirtualClock(1000.0)
        self.local = datetime(2030, 5, 1, 12, 0)
        self.children: list[FakeChild] = []
        self.supervisor = Supervisor(self._start_child, self.config.residency)
        names = list(self.config.classes)
        self.client = EngineClient(self.supervisor, Door(dict.fromkeys(names, 100), 8), dict.fromkeys(names, 60.0))
        self.machine = Machine(self.supervisor)
        self.keeper = Keeper(
            self.supervisor,
            self.client,
            self.config.residency,
            self.config.classes,
            self.machine,
            clock=self.clock,
            local=lambda: self.local,
        )
        self.supervisor.on_state = lambda state: self.keeper.look()
        self.warmed = 0
        self.keeper.keep_warm = self._keep_warm

    def _start_child(self) -> FakeChild:
        self.children.append(FakeChild())
        self.children[-1].say(READY)
        return self.children[-1]

    def start_broken(self) -> FakeChild:
        """Once."""
        self.supervisor._start_child = self._start_child
        child = FakeChild()
        child.say(EngineFailed("not a model after all", fatal=True))
        child.die()
        return child

    def _keep_warm(self) -> None:
        self.warmed += 1

    @property
    def state(self) -> State:
        return self.supervisor.state

    async def reach(self, state: State) -> None:
        await until(lambda: self.state is state)

    def ask(self, request_id: str, fairness_class: str = "interactive", keep_alive_s: float | None = None) -> Stream:
        add = make_add(request_id, fairness_class)
        self.keeper.arrive(add.source, fairness_class, keep_alive_s)
        return self.client.submit([add], api="/test")

    def begin(self, request_id: str) -> None:
        self.client.handle(step(output(request_id, 0, 10), admitted=(request_id,)))

    def end(self, request_id: str, reason: FinishReason = FinishReason.STOP) -> None:
        self.client.handle(step(finished(request_id, reason)))
        self.keeper.ended("kitchen")


Start = Callable[..., "Home"]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    homes: list[tuple[Home, asyncio.Task[None]]] = []

    def make(*settings: str) -> Home:
        home = Home(*settings)
        home.supervisor.spawn()
        home.supervisor.start()
        homes.append((home, asyncio.create_task(home.keeper.run())))
        return home

    yield make
    for home, task in homes:
        home.keeper.close()
        await task
        await home.supervisor.stop()


async def test_unload_goes_before_the_policy_until_somebody_asks(start: Start) -> None:
    home = start()
    await home.reach(State.RESIDENT)
    home.keeper.unload()
    await home.reach(State.SLEEPING)
    home.ask("a")
    await home.reach(State.RESIDENT)
    assert len(home.children) == 2


async def test_idle_sleeps_when_its_time_is_up_and_not_before(start: Start) -> None:
    home = start("residency.policy=idle", "residency.idle_timeout_s=100")
    await home.reach(State.RESIDENT)
    home.ask("a")
    home.begin("a")
    home.clock.advance(1000.0)
    home.keeper.look()
    await asyncio.sleep(0.01)
    assert home.state is State.RESIDENT  # a request is live
    home.end("a")
    assert home.keeper.expires_in_s == 100.0
    home.clock.advance(99.0)
    home.keeper.look()
    await asyncio.sleep(0.01)
    assert home.state is State.RESIDENT
    home.clock.advance(1.0)
    home.keeper.look()
    await home.reach(State.SLEEPING)


async def test_idle_counts_from_when_the_model_is_there_however_long_it_took_to_load(start: Start) -> None:
    home = start("residency.policy=idle", "residency.idle_timeout_s=100")
    home.clock.advance(150.0)
    await home.reach(State.RESIDENT)
    await asyncio.sleep(0.01)
    assert home.state is State.RESIDENT
    assert home.keeper.expires_in_s == 100.0


async def test_requests_are_refused_out_of_hours_and_told_when_to_come(start: Start) -> None:
    home = start("residency.policy=schedule", "residency.outside_hours=refuse")
    await home.reach(State.RESIDENT)
    home.local = NIGHT
    home.keeper.look()
    await home.reach(State.SLEEPING)
    with pytest.raises(NotReady, match=r"residency\.hours") as caught:
        home.ask("a")
    assert caught.value.retry_after_s == 4 * 3600
    home.keeper.load()
    await home.reach(State.RESIDENT)


async def test_unload_waits_for_what_runs_and_cuts_off_what_does_not_end(start: Start) -> None:
    home = start("residency.drain_timeout_s=0")
    await home.reach(State.RESIDENT)
    stream = home.ask("a")
    home.begin("a")
    home.keeper.unload()
    await home.reach(State.DRAINING)
    await until(lambda: AbortRequests(["a"]) in home.children[0].heard)
    home.end("a", FinishReason.ABORT)
    await home.reach(State.SLEEPING)
    list(stream.read())
    with pytest.raises(NotReady, match="ended this request"):
        await stream.wait()


async def test_yield_pauses_all_but_voice_and_refuses_who_may_not_wait(start: Start) -> None:
    home = start()
    await home.reach(State.RESIDENT)
    voice, chat = home.ask("v", "voice"), home.ask("c")
    home.begin("v")
    home.begin("c")
    home.keeper.give_device_away()
    await until(lambda: AbortRequests(["c"]) in home.children[0].heard)
    home.end("c", FinishReason.ABORT)
    await asyncio.sleep(0.01)
    assert home.state is State.DRAINING  # voice is still speaking
    home.end("v")
    await home.reach(State.YIELDED)
    await until(lambda: home.warmed)
    assert home.client.num_live == 1
    list(voice.read())
    assert voice.is_over
    with pytest.raises(Yielded):
        home.ask("d")
    waiting = home.ask("b", "background")
    home.keeper.load()
    await home.reach(State.RESIDENT)
    assert [message.request_id for message in home.children[1].heard] == ["c", "b"]
    assert not chat.is_over
    assert not waiting.is_over


async def test_loan_for_a_while_ends(start: Start) -> None:
    home = start()
    await home.reach(State.RESIDENT)
    home.keeper.give_device_away(30.0)
    await home.reach(State.YIELDED)
    assert home.keeper.back_in_s() == 30.0
    home.clock.advance(30.0)
    home.keeper.look()
    await home.reach(State.RESIDENT)


async def test_game_is_made_room_for_and_the_model_comes_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "WATCH_S", 0.001)
    home = start("residency.share_gpu=on", "residency.gpu_notice_s=0", "residency.gpu_quiet_s=10")
    await home.reach(State.RESIDENT)
    game = GPUProcess(7, "game", 9 * GIB, 0.9)
    home.clock.advance(1.0)
    home.keeper.look()
    await asyncio.sleep(0.05)  # it sees the GPU without the game first
    home.machine.others = [game]

    async def watch_until(state: State) -> None:
        while home.state is not state:
            home.clock.advance(0.5)
            await asyncio.sleep(0.002)

    async with asyncio.timeout(60):
        await watch_until(State.YIELDED)
        assert "game (7)" in (home.supervisor.away_reason or "")
        home.machine.others = []
        await watch_until(State.RESIDENT)


async def test_gpu_is_not_watched_for_a_model_on_cpu(start: Start) -> None:
    home = start()
    await home.reach(State.RESIDENT)
    assert not home.keeper._watches_gpu


async def test_closing_tells_who_waits(start: Start) -> None:
    home = start()
    await home.reach(State.RESIDENT)
    home.keeper.pause("interactive")
    stream = home.ask("a")
    home.supervisor.drain()
    home.keeper.close()
    with pytest.raises(NotReady):
        await stream.wait()


async def test_model_that_cannot_be_loaded_makes_way_for_the_one_before(start: Start) -> None:
    home = start()
    await home.reach(State.RESIDENT)
    done: list[str] = []

    async def put_the_one_before_back() -> None:
        done.append("back")
        await home.supervisor.rest(State.LOADING, "the one before")

    async def put_another_one() -> None:
        await home.supervisor.rest(State.LOADING, "another model")
        home.keeper.fall_back = put_the_one_before_back

    home.keeper.switch(put_another_one)
    with pytest.raises(NotReady, match="already"):
        home.keeper.switch(put_another_one)
    home.supervisor._start_child = home.start_broken
    await until(lambda: done)
    await home.reach(State.RESIDENT)
    assert home.keeper.fall_back is None
