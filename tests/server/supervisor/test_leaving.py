"""Going away on purpose, and coming back."""

from __future__ import annotations

import asyncio

import pytest

from homeai.errors import NotReady
from homeai.messages import EngineFailed, Shutdown
from homeai.server import supervisor as supervisor_module
from homeai.server.supervisor import State
from tests.server.fakes import READY, make_add, until
from tests.server.supervisor.house import House

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


async def test_who_left_again_before_anybody_looked_has_begun(house: House) -> None:
    """Its text took longer to read than nobody needed the model: the daemon is up all the same."""
    await house.become_resident()
    house.supervisor.leave()
    begun = asyncio.create_task(house.supervisor.begun())
    await asyncio.sleep(0)
    assert not begun.done()
    await house.supervisor.rest(State.SLEEPING, "idle")
    await begun


async def test_start_that_failed_has_not_begun(house: House) -> None:
    await house.lose_child(EngineFailed("not a GGUF", fatal=True))
    with pytest.raises(NotReady, match="not a GGUF"):
        await house.supervisor.begun()


async def test_start_may_be_away() -> None:
    house = House()
    house.supervisor.start_away(State.SLEEPING, "it is night")
    house.supervisor.start()
    await asyncio.sleep(0)
    assert house.children == []
    await house.supervisor.begun()
    house.supervisor.wake()
    await until(lambda: house.children)
    await house.supervisor.stop()
