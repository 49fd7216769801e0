"""What watchers get: each change once, built once for all of them, and nothing is built when nobody watches."""

from __future__ import annotations

import asyncio

import pytest

from homeai.server import live as module
from homeai.server.live import IDLE_TICKS, Live


class Watched:
    """Counts what is built; `value` is what there is to see."""

    def __init__(self) -> None:
        self.value = 0
        self.num_built = 0
        self.is_over = False
        self.num_looked = 0
        self.live = Live(self._build, self._look, lambda: self.is_over)

    def _look(self) -> int:
        self.num_looked += 1
        return self.value

    def _build(self) -> bytes:
        self.num_built += 1
        return str(self.value).encode()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    return Watched()


async def test_watchers_share_what_is_built(watched: Watched) -> None:
    watchers = [watched.live.events() for _ in range(5)]
    assert await asyncio.gather(*map(anext, watchers)) == [b"data: 0\n\n"] * 5
    before = watched.num_built
    assert before <= 2  # a tick may have ended between two of them
    watched.value = 1
    assert await asyncio.gather(*map(anext, watchers)) == [b"data: 1\n\n"] * 5
    assert watched.num_built == before + 1


async def test_nothing_new_is_said_now_and_then(watched: Watched) -> None:
    watcher = watched.live.events()
    assert [await anext(watcher) for _ in range(3)] == [b"data: 0\n\n"] * 3
    assert watched.num_looked >= 2 * IDLE_TICKS


async def test_who_comes_later_gets_the_latest_at_once(watched: Watched) -> None:
    early = watched.live.events()
    await anext(early)
    watched.value = 7
    assert await anext(early) == b"data: 7\n\n"
    assert await anext(watched.live.events()) == b"data: 7\n\n"


async def test_nothing_is_built_while_nobody_watches(watched: Watched) -> None:
    watcher = watched.live.events()
    await anext(watcher)
    await watcher.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_it_ends_with_the_server(watched: Watched) -> None:
    watcher = watched.live.events()
    await anext(watcher)
    watched.is_over = True
    assert [event async for event in watcher] == []
