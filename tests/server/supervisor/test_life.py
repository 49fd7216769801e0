"""From the first child to the last word: loading, pins, giving up, draining and stopping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from homeai.errors import EngineDied, NotReady
from homeai.messages import AbortRequests, Heartbeat, LoadProgress, Shutdown, Up
from homeai.request import FinishReason
from homeai.server.supervisor import State
from homeai.server.warmup import Pin, WarmUp
from tests.server.fakes import READY, STATS, finished, make_add, step, until
from tests.server.supervisor.house import House

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
