"""Memory stays where it is once the caches are full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import psutil

from tests.daemon import Daemon

MAX_GROWTH = 1.02


async def ask(client: httpx.AsyncClient, numbers: range, *, at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with places:
            body = {"prompt": f"Item {number}: " + "word " * (number % 30), "max_tokens": 4, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body)
            assert answer.json()["usage"]["completion_tokens"] == 4

    await asyncio.gather(*map(one, numbers))


async def test_the_engine_holds_no_more_after_500_requests_than_after_100(start_daemon: Callable[..., Daemon]) -> None:
    # a small cache is soon full: every cell of it was written to before the first look
    daemon = start_daemon("scheduler.kv_cells=1024")
    (engine,) = psutil.Process(daemon.process.pid).children()
    async with daemon.async_client() as client:
        await ask(client, range(100), at_once=8)
        after_100 = engine.memory_info().rss
        await ask(client, range(100, 500), at_once=8)
    assert engine.memory_info().rss <= after_100 * MAX_GROWTH
