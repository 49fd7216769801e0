"""A1: clients that leave at any moment, whatever they asked and however: everything they held is free, and nobody else
notices."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import httpx
import psutil

from tests.blackbox.apis import APIS
from tests.blackbox.stories import story
from tests.daemon import Daemon, eventually, eventually_async
from tests.streaming import Connection, Stream, exactly

NUM_DISCONNECTS = int(os.environ.get("NUM_DISCONNECTS", "200"))  # scripts/torture-disconnects wants more
NUM_AT_ONCE = 16  # twice as many as there are seats
MAX_STAY_S = 1.5
MAX_GROWTH = 1.03


class Crowd:
    """`who` asks again and again over all APIs, streaming or not, and leaves before the end."""

    def __init__(self, daemon: Daemon, who: str) -> None:
        self._daemon = daemon
        self._who = who
        self._rng = random.Random(who)

    async def leave(self, count: int) -> None:
        places = asyncio.Semaphore(NUM_AT_ONCE)

        async def one(number: int) -> None:
            async with places:
                await self._leave_once(number)

        await asyncio.gather(*map(one, range(count)))

    async def _leave_once(self, number: int) -> None:
        rng = self._rng
        api = rng.choice(list(APIS.values()))
        body = api.body(story(rng.choice([5, 50, 700]), number), 3000, stream=rng.random() < 0.5)
        connection = await Connection.ask(self._daemon.url, body, source=self._who, path=api.path)
        await asyncio.sleep(rng.random() * MAX_STAY_S)
        await connection.leave()


async def stay(client: httpx.AsyncClient, name: str, is_over: asyncio.Event) -> int:
    """Streams, one after the other, which all come to their end with exact counts; how many they were."""
    rng = random.Random(name)
    count = 0
    while not is_over.is_set():
        length = rng.randrange(10, 40)
        body = exactly(length, f"{name} says, for the time number {count},")
        stream = await Stream(client, body, source=name).ended()
        assert (stream.is_done, stream.errors, stream.num_tokens) == (True, [], length)
        count += 1
    return count


def assert_nothing_is_held(daemon: Daemon) -> None:
    assert eventually(lambda: not daemon.status()["requests"])
    assert eventually(lambda: (kv := daemon.status()["kv"])["used"] == kv["kept"])
    batch = daemon.status()["batch"]
    assert (batch["num_running"], batch["num_waiting"]) == (0, 0)


def resources(daemon: Daemon) -> tuple[list[int], int]:
    """Resident bytes of both processes, and files that the server has open."""
    server, (engine,) = psutil.Process(daemon.process.pid), daemon.engines
    return [server.memory_info().rss, engine.memory_info().rss], server.num_fds()


async def test_any_number_of_clients_may_leave_at_any_moment(start_daemon: Callable[..., Daemon]) -> None:
    # a small cache is soon full, and then the engine's memory has no reason to grow
    small = "scheduler.kv_cells=4096", "scheduler.host_cache_mb=16"
    daemon = start_daemon(*small, "classes.interactive.max_waiting=256")
    await Crowd(daemon, "first").leave(max(100, NUM_DISCONNECTS // 4))
    assert_nothing_is_held(daemon)
    memory_before, files_before = resources(daemon)
    is_over = asyncio.Event()
    async with daemon.async_client() as client:
        stayers = [asyncio.create_task(stay(client, name, is_over)) for name in ("Anna", "Ben", "Cleo")]
        await Crowd(daemon, "leaver").leave(NUM_DISCONNECTS)
        is_over.set()
        assert min(await asyncio.gather(*stayers)) > 0
    assert_nothing_is_held(daemon)

    rows = await eventually_async(lambda: len(rows := daemon.ledger_rows("leaver")) == NUM_DISCONNECTS and rows)
    assert {row["status"] for row in rows} <= {200, 499}, "some texts end by themselves first"
    left = [row for row in rows if row["status"] == 499]
    moments = {
        "queued": sum(row["queue_s"] is None for row in left),
        "prefill": sum(row["queue_s"] is not None and row["ttft_s"] is None for row in left),
        "decode": sum(row["num_output_tokens"] > 0 for row in left),
    }
    assert min(moments.values()) >= NUM_DISCONNECTS // 50, moments
    assert daemon.status()["totals"]["failed"] == 0

    await eventually_async(lambda: resources(daemon)[1] <= files_before)
    memory, _ = resources(daemon)
    for after, before in zip(memory, memory_before, strict=True):
        assert after <= before * MAX_GROWTH, (memory_before, memory)
