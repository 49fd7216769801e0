"""The engine child's life, with a child that does as it is told and a clock that moves when told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from homeai.clock import VirtualClock
from homeai.config import ResidencyConfig
from homeai.errors import EngineDied, GPUUnavailable, NotReady
from homeai.messages import AbortRequests, EngineFailed, Heartbeat, LoadProgress, Shutdown, Up
from homeai.request import FinishReason
from homeai.server import supervisor as supervisor_module
from homeai.server.supervisor import State, Supervisor
from homeai.server.warmup import Pin, WarmUp
from tests.server.fakes import READY, STATS, FakeChild, finished, make_add, step, until

CONFIG = ResidencyConfig(load_timeout_s=600.0, heartbeat_timeout_s=60.0, max_restarts=2, restart_window_s=100.0)


class House:
    """A supervisor, its children so far, and what it told the rest of the house."""

    def __init__(self, warm_up: WarmUp | None = None) -> None:
        self.clock = VirtualClock()
        self.children: list[FakeChild] = []
        self.supervisor = Supervisor(self._start_child, CONFIG, self.clock, warm_up)
        self.states: list[State] = []
        self.messages: list[object] = []
        self.losses: list[NotReady] = []
        self.supervisor.on_state = self.states.append
        self.supervisor.on_message = self.messages.append
        self.deaths: list[str] = []
        self.supervisor.on_lost = self.losses.append
        self.supervisor.on_died = lambda reason, by_itself: self.deaths.append(reason)

    def _start_child(self) -> FakeChild:
        self.children.append(FakeChild(pid=len(self.children) + 1))
        return self.children[-1]

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    @property
    def state(self) -> State:
        return self.supervisor.state

    async def reach(self, state: State) -> None:
        await until(lambda: self.state is state)

    async def become_resident(self) -> None:
        self.child.say(READY)
        await self.reach(State.RESIDENT)

    async def lose_child(self, *last_words: EngineFailed) -> None:
        """It dies, and the next one is started or none."""
        num_ends = len(self.losses) + len(self.deaths)
        self.child.say(*last_words)
        self.child.die()
        await until(lambda: len(self.losses) + len(self.deaths) > num_ends)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    monkeypatch.setattr(supervisor_module, "LOOK_AGAIN_S", (0.0,))
    monkeypatch.setattr(supervisor_module, "WATCH_INTERVAL_S", 0.0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """With a first child that loads."""
    house = House()
    house.supervisor.spawn()
    task = house.supervisor.start()
    yield house
    await house.supervisor.stop()
    assert task.done()
    assert task.exception() is None


# ---- start ---------------------------------------------------------------------------------------------


async def test_child_is_started_before_there_is_anybody_to_listen() -> None:
    house = House()
    house.supervisor.spawn()
    assert (house.state, len(house.children)) == (State.LOADING, 1)
    assert house.supervisor.engine_pid == 1
    await house.supervisor.stop()
    assert house.supervisor.state is State.STOPPED


async def test_load_is_followed_to_residency(house: House) -> None:
    house.child.say(LoadProgress("weights", 0.5))
    await until(lambda: house.supervisor.progress)
    assert house.state is State.LOADING
    house.child.say(LoadProgress("warm-up", 1.0))
    await house.reach(State.WARMING)
    house.child.say(READY)
    await house.reach(State.RESIDENT)
    assert house.supervisor.ready == READY
    assert house.supervisor.progress is None
    assert house.states == [State.LOADING, State.WARMING, State.RESIDENT]


async def test_parts_of_a_load_are_timed_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """The launch counts for the first child only, and what a part took is for the engine to say."""
    house = House()
    with caplog.at_level("INFO", "homeai.supervisor"):
        house.supervisor.spawn(launch_s=0.25)
        house.clock.advance(1.5)
        house.supervisor.start()
        house.child.say(msgspec.structs.replace(READY, parts_s={"imports": 0.5, "weights": 0.75}))
        await house.reach(State.RESIDENT)
    startup = house.supervisor.startup
    assert startup.total_s == 1.75
    assert startup.parts_s == {"launch": 0.25, "imports": 0.5, "weights": 0.75, "pins": 0.0}
    assert "resident after 1.8 s: launch 0.2, imports 0.5, weights 0.8, pins 0.0" in caplog.text
    await house.lose_child()
    await until(lambda: len(house.children) == 2)
    house.clock.advance(2.0)
    await house.become_resident()
    assert (house.supervisor.startup.total_s, "launch" in house.supervisor.startup.parts_s) == (2.0, False)
    await house.supervisor.stop()


async def test_all_callers_join_one_load(house: House) -> None:
    waiting = [asyncio.create_task(house.supervisor.ensure_ready()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    house.child.say(READY)
    assert await asyncio.gather(*waiting) == [READY] * 3
    assert len(house.children) == 1


async def test_what_is_sent_while_it_loads_follows_when_it_is_ready_in_order(house: House) -> None:
    for request_id in "abc":
        house.supervisor.send(make_add(request_id))
    assert house.supervisor.takes_requests
    assert house.supervisor.withdraw(["b", "unknown"]) == ["b"]
    assert house.child.heard == []
    await house.become_resident()
    house.supervisor.send(make_add("d"))
    assert house.child.heard == [make_add("a"), make_add("c"), make_add("d")]
    assert house.supervisor.withdraw(["a", "d"]) == []  # the engine knows them


async def test_what_the_engine_says_is_passed_on(house: House) -> None:
    await house.become_resident()
    house.child.say(step(), Heartbeat(1))
    await until(lambda: len(house.messages) == 2)
    assert house.messages == [step(), Heartbeat(1)]


# ---- pins ----------------------------------------------------------------------------------------------


def end_of_pin(name: str) -> Up:
    ended = msgspec.structs.replace(finished(f"pin {name}", FinishReason.LENGTH), is_pinned=True)
    return msgspec.structs.replace(step(ended), stats=msgspec.structs.replace(STATS, num_running=0, num_pinned_seqs=2))


@pytest.fixture
async def pinning() -> AsyncIterator[House]:
    """A house that will have pins, whose first child loads."""
    house = House(WarmUp(has_pins=True))
    house.supervisor.spawn()
    house.supervisor.start()
    yield house
    await house.supervisor.stop()


def two_pins() -> list[Pin]:
    return [Pin(name, "kitchen", "voice", [1, 2, 3]) for name in "ab"]


async def test_pins_come_before_everybody_s_requests(pinning: House) -> None:
    pinning.supervisor.send(make_add("r"))
    pinning.supervisor.pin(two_pins())
    pinning.child.say(READY)
    await until(lambda: pinning.child.heard)
    assert (pinning.state, pinning.supervisor.ready) == (State.WARMING, None)
    assert pinning.supervisor.progress == LoadProgress("reading pin a", 0.0)
    pinning.child.say(end_of_pin("a"))
    await until(lambda: len(pinning.child.heard) == 2)
    assert pinning.state is State.WARMING
    pinning.child.say(end_of_pin("b"))
    await pinning.reach(State.RESIDENT)
    assert [message.request_id for message in pinning.child.heard] == ["pin a", "pin b", "r"]
    assert pinning.states == [State.LOADING, State.WARMING, State.RESIDENT]
    assert all(not message.finished for message in pinning.messages), "nobody asked for them"


async def test_loaded_engine_waits_until_the_pins_are_known(pinning: House) -> None:
    pinning.child.say(READY, Heartbeat(1))
    await until(lambda: pinning.messages)
    assert (pinning.state, pinning.supervisor.ready) == (State.LOADING, None)
    pinning.supervisor.pin([])
    await pinning.reach(State.RESIDENT)


async def test_every_engine_computes_the_pins_anew(pinning: House) -> None:
    pinning.supervisor.pin(two_pins())
    for _ in range(2):
        pinning.child.say(READY, end_of_pin("a"))
        await until(lambda: len(pinning.child.heard) == 2)
        await pinning.lose_child()
        await until(lambda: pinning.state is State.LOADING and not pinning.child.heard)
    pinning.child.say(READY, end_of_pin("a"), end_of_pin("b"))
    await pinning.reach(State.RESIDENT)


# ---- failure and death ---------------------------------------------------------------------------------


async def test_model_that_cannot_be_loaded_is_not_tried_again(house: House) -> None:
    waiting = asyncio.create_task(house.supervisor.ensure_ready())
    await house.lose_child(EngineFailed("not a GGUF", fatal=True))
    assert house.state is State.FAILED
    assert len(house.children) == 1
    assert house.supervisor.failure == "not a GGUF"
    assert not house.supervisor.is_alive
    assert not house.supervisor.takes_requests
    with pytest.raises(NotReady, match="not a GGUF"):
        await waiting
    with pytest.raises(NotReady, match="not a GGUF"):
        await house.supervisor.ensure_ready()


async def test_crash_is_told_once_and_another_child_started(house: House) -> None:
    await house.become_resident()
    await house.lose_child()
    await until(lambda: len(house.children) == 2)
    assert (house.deaths, house.losses) == (["the engine process ended with exit code 1"], [])
    assert house.state is State.LOADING
    assert house.supervisor.ready is None
    assert house.supervisor.num_restarts == 1
    await house.become_resident()
    assert await house.supervisor.ensure_ready() == READY


async def test_last_words_explain_the_crash(house: House) -> None:
    await house.become_resident()
    await house.lose_child(EngineFailed("logits are broken", fatal=False))
    assert house.deaths == ["logits are broken"]
    assert house.state is State.LOADING


async def test_requests_that_a_lost_child_never_heard_of_reach_the_next(house: House) -> None:
    house.supervisor.send(make_add("early"))
    await house.lose_child()
    house.supervisor.send(make_add("new"))
    await until(lambda: len(house.children) == 2)
    await house.become_resident()
    assert house.child.heard == [make_add("early"), make_add("new")]


async def test_child_that_dies_too_often_stays_down(house: House) -> None:
    for num_children in (2, 3):
        await house.lose_child()
        await until(lambda count=num_children: len(house.children) == count)
    await house.lose_child()
    assert house.state is State.FAILED
    assert len(house.children) == 3
    assert (len(house.deaths), len(house.losses)) == (2, 1)


async def test_deaths_of_long_ago_do_not_count(house: House) -> None:
    for num_children in range(2, 8):
        await house.lose_child()
        await until(lambda count=num_children: len(house.children) == count)
        house.clock.advance(CONFIG.restart_window_s / 2 + 1)
    assert house.state is State.LOADING


async def test_stop_does_not_wait_for_the_back_off(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (3600.0,))
    await house.lose_child()
    await house.supervisor.stop()
    assert house.state is State.STOPPED
    assert len(house.children) == 1


# ---- a device that is unavailable ----------------------------------------------------------------------

NO_GPU = EngineFailed("no GPU yet", fatal=False, unavailable=True)


async def test_unavailable_device_is_looked_at_until_it_is_there(house: House) -> None:
    """However often: nothing died. Nothing is served on another device meanwhile."""
    for num_children in range(2, CONFIG.max_restarts + 5):
        await house.lose_child(NO_GPU)
        await until(lambda count=num_children: len(house.children) == count)
    assert (house.state, house.supervisor.failure, house.supervisor.num_restarts) == (State.LOADING, "no GPU yet", 0)
    assert house.supervisor.is_alive
    await house.become_resident()
    assert house.supervisor.failure is None
    assert house.supervisor.takes_requests


async def test_requests_are_told_that_the_device_is_unavailable_and_to_try_again(house: House) -> None:
    house.supervisor.send(make_add("early"))
    await house.lose_child(NO_GPU)
    (told,) = house.losses
    assert type(told) is GPUUnavailable
    assert "no GPU yet" in told.message
    assert told.retry_after_s
    assert not house.supervisor.takes_requests
    await until(lambda: len(house.children) == 2)
    assert not house.supervisor.takes_requests  # nobody knows how often it will be looked at yet
    await house.become_resident()
    assert house.child.heard == []


async def test_reason_why_the_device_is_unavailable_is_told_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    out_of_memory = EngineFailed("out of memory", fatal=False, unavailable=True)
    for num_children, last_words in enumerate((NO_GPU, NO_GPU, out_of_memory), 2):
        await house.lose_child(last_words)
        await until(lambda count=num_children: len(house.children) == count)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no GPU yet", "out of memory"]
    assert house.states == [State.LOADING] * 3  # the state is the same, the reason is news


async def test_device_that_is_lost_to_a_game_is_waited_for(house: House) -> None:
    await house.become_resident()
    await house.lose_child()
    await until(lambda: len(house.children) == 2)
    await house.lose_child(EngineFailed("out of memory", fatal=False, unavailable=True))
    assert (house.state, house.supervisor.failure) == (State.LOADING, "out of memory")
    await until(lambda: len(house.children) == 3)
    await house.become_resident()


async def test_looks_become_seldom_and_stop_does_not_wait_for_the_next(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "LOOK_AGAIN_S", (0.0, 3600.0))
    await house.lose_child(NO_GPU)
    await until(lambda: len(house.children) == 2)
    await house.lose_child(NO_GPU)
    await house.supervisor.stop()
    assert len(house.children) == 2


async def test_unavailable_device_ends_a_drain(house: House) -> None:
    house.supervisor.drain()
    await house.lose_child(NO_GPU)
    await house.supervisor.stop()
    assert len(house.children) == 1
    assert len(house.losses) == 1


# ---- giving up -----------------------------------------------------------------------------------------


async def test_giving_up_ends_the_child_and_says_why(house: House) -> None:
    house.supervisor.give_up("no template")
    assert house.state is State.FAILED
    assert house.child.was_killed
    assert [loss.message for loss in house.losses] == ["the model is not available (failed): no template"]
    house.supervisor.give_up("another reason")
    assert house.supervisor.failure == "no template"
    assert len(house.losses) == 1


@pytest.mark.parametrize("late", [LoadProgress("weights", 0.9), LoadProgress("warm-up", 1.0), READY, step()])
async def test_what_was_on_its_way_changes_nothing_after_giving_up(house: House, late: object) -> None:
    house.child.say(late)
    house.supervisor.give_up("no template")
    await house.supervisor.stop()
    assert house.states == [State.LOADING, State.FAILED, State.STOPPED]
    assert house.messages == []


# ---- silence -------------------------------------------------------------------------------------------


async def test_silent_child_is_killed_and_replaced(house: House) -> None:
    await house.become_resident()
    hung = house.child
    house.clock.advance(CONFIG.heartbeat_timeout_s + 1)
    assert not house.supervisor.is_alive
    await until(lambda: len(house.children) == 2)
    assert hung.was_killed
    assert (len(house.deaths), house.losses) == (1, [])


async def test_heartbeat_keeps_it_alive(house: House) -> None:
    await house.become_resident()
    for num_beats in range(1, 4):
        house.clock.advance(CONFIG.heartbeat_timeout_s - 1)
        assert house.supervisor.is_alive
        house.child.say(Heartbeat(num_beats))
        await until(lambda count=num_beats: len(house.messages) == count)
    assert not house.child.was_killed


@pytest.mark.parametrize("long_step", [Heartbeat(1, predicted_s=100.0), step(step_s=100.0)], ids=["announced", "seen"])
async def test_long_step_has_its_time(house: House, long_step: Up) -> None:
    """A big model's step on a slow CPU takes minutes, in which the loop cannot speak."""
    await house.become_resident()
    house.child.say(long_step)
    await until(lambda: house.messages)
    house.clock.advance(399.0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert house.supervisor.is_alive
    assert not house.child.was_killed
    house.clock.advance(2.0)
    assert not house.supervisor.is_alive
    await until(lambda: len(house.children) == 2)
    await house.become_resident()
    house.clock.advance(CONFIG.heartbeat_timeout_s + 1)
    assert not house.supervisor.is_alive  # the next child's steps are not known to be long


async def test_loading_may_be_silent_for_longer(house: House) -> None:
    house.clock.advance(CONFIG.load_timeout_s - 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert house.supervisor.is_alive
    assert not house.child.was_killed
    house.clock.advance(2)
    await until(lambda: len(house.children) == 2)


# ---- drain and stop ------------------------------------------------------------------------------------


async def test_draining_takes_nothing_new_and_lets_the_live_go_on(house: House) -> None:
    await house.become_resident()
    house.supervisor.drain()
    assert not house.supervisor.takes_requests
    assert house.supervisor.is_alive
    house.supervisor.send(AbortRequests(["a"]))
    assert house.child.heard == [AbortRequests(["a"])]
    house.child.say(step())
    await until(lambda: house.messages == [step()])
    assert house.state is State.DRAINING
    assert house.supervisor.not_ready().retry_after_s == 5.0


async def test_what_waits_for_the_load_is_sent_though_it_drains(house: House) -> None:
    for request_id in "ab":
        house.supervisor.send(make_add(request_id))
    house.supervisor.drain()
    house.child.say(READY)
    await until(lambda: house.child.heard)
    house.supervisor.send(AbortRequests(["a"]))
    assert house.child.heard == [make_add("a"), make_add("b"), AbortRequests(["a"])]
    assert house.state is State.DRAINING


async def test_drain_during_the_load_leaves_nobody_waiting_for_it(house: House) -> None:
    waiting = asyncio.create_task(house.supervisor.ensure_ready())
    await asyncio.sleep(0)
    house.supervisor.drain()
    await until(waiting.done)
    with pytest.raises(NotReady, match="draining"):
        await waiting


async def test_child_that_dies_while_draining_is_not_replaced(house: House) -> None:
    await house.become_resident()
    house.supervisor.drain()
    await house.lose_child()
    await house.supervisor.stop()
    assert len(house.children) == 1
    assert [type(loss) for loss in house.losses] == [EngineDied]


async def test_stop_ends_the_child_and_tells_what_was_still_in_it(house: House) -> None:
    await house.become_resident()
    house.supervisor.drain()
    await house.supervisor.stop()
    assert house.child.heard == [Shutdown()]
    assert house.states[-2:] == [State.DRAINING, State.STOPPED]
    assert [type(loss) for loss in house.losses] == [NotReady]
    assert house.supervisor.engine_pid is None


async def test_failed_stays_failed_when_it_is_to_drain(house: House) -> None:
    house.supervisor.give_up("no template")
    house.supervisor.drain()
    assert house.state is State.FAILED


async def test_stop_may_be_repeated(house: House) -> None:
    await house.supervisor.stop()
    await house.supervisor.stop()
    assert house.states == [State.LOADING, State.STOPPED]


async def test_a_restart_remembers_the_device_that_auto_came_to(house: House) -> None:
    assert house.supervisor.device is None
    await house.become_resident()
    await house.lose_child()
    assert house.supervisor.device == READY.device


# ---- going away and coming back --------------------------------------------------------------------------


@pytest.mark.parametrize("away", [State.SLEEPING, State.YIELDED])
async def test_rest_ends_the_child_and_wake_starts_another(house: House, away: State) -> None:
    await house.become_resident()
    house.supervisor.leave()
    await house.supervisor.rest(away, "a reason")
    assert (house.state, house.supervisor.ready, house.supervisor.engine_pid) == (away, None, None)
    assert Shutdown() in house.child.heard
    assert (house.deaths, house.losses) == (["a reason"], [])  # what was in it goes on in the next one
    assert "a reason" in house.supervisor.not_ready().message
    assert house.supervisor.is_alive
    assert house.supervisor.takes_requests
    house.supervisor.wake()
    assert house.state is State.LOADING
    await until(lambda: len(house.children) == 2)
    await house.become_resident()
    assert house.supervisor.away_reason is None
    assert house.states[-3:] == [away, State.LOADING, State.RESIDENT]


async def test_what_is_sent_while_it_is_away_follows_when_it_is_back(house: House) -> None:
    await house.become_resident()
    await house.supervisor.rest(State.SLEEPING, "idle")
    house.supervisor.send(make_add("a"))
    house.supervisor.wake()
    await until(lambda: len(house.children) == 2)
    await house.become_resident()
    assert house.child.heard == [make_add("a")]


async def test_rest_may_be_followed_by_another_child_at_once(house: House) -> None:
    await house.become_resident()
    house.supervisor.leave()
    await house.supervisor.rest(State.LOADING, "another model")
    await until(lambda: len(house.children) == 2)
    assert house.states[-2:] == [State.DRAINING, State.LOADING]


async def test_rest_does_not_wait_for_a_back_off(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (3600.0,))
    await house.lose_child()
    await house.supervisor.rest(State.YIELDED, "a game")
    assert house.state is State.YIELDED


async def test_one_sort_of_away_may_follow_the_other(house: House) -> None:
    await house.supervisor.rest(State.SLEEPING, "idle")
    await house.supervisor.rest(State.YIELDED, "a game")
    assert (house.state, house.supervisor.away_reason) == (State.YIELDED, "a game")


async def test_owner_may_have_a_failed_model_tried_again(house: House) -> None:
    await house.lose_child(EngineFailed("not a GGUF", fatal=True))
    house.supervisor.wake()
    await until(lambda: len(house.children) == 2)
    await house.become_resident()
    assert house.supervisor.failure is None


async def test_load_waits_for_whoever_asked_for_it(house: House) -> None:
    """A10: while the model leaves and comes back nobody is told that it is gone."""
    await house.become_resident()
    house.supervisor.leave()
    waiting = asyncio.create_task(house.supervisor.ensure_ready())
    await asyncio.sleep(0)
    assert not waiting.done()
    await house.supervisor.rest(State.LOADING, "another model")
    await until(lambda: len(house.children) == 2)
    house.child.say(READY)
    assert await waiting == READY


async def test_stop_while_it_is_away_tells_who_waits(house: House) -> None:
    await house.supervisor.rest(State.YIELDED, "a game")
    house.supervisor.send(make_add("a"))
    house.supervisor.drain()
    assert len(house.losses) == 1
    assert not house.supervisor.takes_requests
    await house.supervisor.rest(State.SLEEPING, "idle")
    assert house.state is State.DRAINING  # the server's end goes before


async def test_start_may_be_away() -> None:
    house = House()
    house.supervisor.start_away(State.SLEEPING, "it is night")
    house.supervisor.start()
    await asyncio.sleep(0)
    assert house.children == []
    house.supervisor.wake()
    await until(lambda: house.children)
    await house.supervisor.stop()
