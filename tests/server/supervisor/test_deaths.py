"""Children that die, hang, or find no device."""

from __future__ import annotations

import asyncio
import signal

import pytest

from homeai.errors import GPUUnavailable, NotReady
from homeai.messages import EngineFailed, Heartbeat, Up
from homeai.server import supervisor as supervisor_module
from homeai.server.supervisor import State
from tests.server.fakes import READY, make_add, step, until
from tests.server.supervisor.house import CONFIG, House

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


async def test_child_that_was_killed_is_replaced_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (3600.0,))
    await house.become_resident()
    await house.lose_child(exit_code=-signal.SIGKILL)
    await until(lambda: len(house.children) == 2)


async def test_child_that_was_killed_too_often_stays_down(house: House) -> None:
    for num_children in (2, 3):
        await house.lose_child(exit_code=-signal.SIGKILL)
        await until(lambda count=num_children: len(house.children) == count)
    await house.lose_child(exit_code=-signal.SIGKILL)
    assert house.state is State.FAILED


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
