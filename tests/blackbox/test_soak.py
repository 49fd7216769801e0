"""A house's mixed load for a while: no errors, books that add up, and nothing that grows."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx
import psutil
import pytest

from tests.blackbox.apis import APIS, CHATS, Api, merged
from tests.blackbox.stories import story
from tests.blackbox.test_openai_tools import TOOLS, named
from tests.blackbox.test_schemas import FORMS
from tests.daemon import Daemon, eventually_async
from tests.streaming import Connection

SOAK_MINUTES = float(os.environ.get("SOAK_MINUTES", "1"))  # scripts/soak wants more
SAMPLE_S = 0.25
MAX_CHANGE = 0.03
LIGHT = {
    "type": "object",
    "properties": {"room": {"enum": ["kitchen", "hall"]}, "level": {"type": "integer"}},
    "required": ["room", "level"],
    "additionalProperties": False,
}
SOURCES = "sources=[{name: kitchen, class: voice}, {name: editor, class: coding}, {name: nightly, class: background}]"
SMALL_CACHES = "scheduler.kv_cells=4096", "scheduler.host_cache_mb=16"  # that are full before the first look


@dataclass
class Counts:
    """What the clients know of their requests, all of a source."""

    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    num_tokens: Counter[str] = field(default_factory=Counter)  # of the answers

    def asked(self, source: str) -> int:
        return self.answered[source] + self.refused[source] + self.left[source]


class House:
    """Who lives there: each asks again as soon as it was answered, until it is over."""

    def __init__(self, daemon: Daemon, client: httpx.AsyncClient) -> None:
        self.counts = Counts()
        self._daemon = daemon
        self._client = client

    async def live(self, until: float) -> None:
        people: list[Callable[[random.Random, int], Awaitable[None]]] = [
            *(self._speak, self._chat, self._chat, self._complete),
            *(self._tag, self._tag, self._leave, self._err),
        ]

        async def one(number: int, person: Callable[[random.Random, int], Awaitable[None]]) -> None:
            rng, turn = random.Random(number), 0
            while time.monotonic() < until:
                await person(rng, 1000 * number + turn)
                turn += 1
                await asyncio.sleep(rng.random() * 0.3)  # nobody types that fast

        await asyncio.gather(*(one(number, person) for number, person in enumerate(people)))

    async def _speak(self, rng: random.Random, turn: int) -> None:
        """The voice assistant: switch something, by a call of a tool."""
        api = APIS["/v1/chat/completions"]
        tools = {"tools": TOOLS, "tool_choice": named(rng.choice(["set_light", "set_blind"]))}
        await self._ask("kitchen", api, api.body(story(8, turn), 48, stream=True, goes_on=False) | tools)

    async def _chat(self, rng: random.Random, turn: int) -> None:
        api = rng.choice(list(CHATS.values()))
        text = story(rng.randrange(5, 80), turn)
        await self._ask("default", api, api.body(text, rng.randrange(8, 60), stream=True, goes_on=False))

    async def _complete(self, rng: random.Random, turn: int) -> None:
        """The editor: a long prompt whose beginning stays, a short answer."""
        api = rng.choice([APIS["/v1/completions"], APIS["/completion"], APIS["/api/generate"]])
        text = story(400, seed=7) + story(rng.randrange(20, 100), turn)
        await self._ask("editor", api, api.body(text, 12, stream=rng.random() < 0.5))

    async def _tag(self, rng: random.Random, turn: int) -> None:
        """At night: answers of a given form, whole."""
        path = rng.choice(list(FORMS))
        body = merged(APIS[path].always | FORMS[path](LIGHT), APIS[path].limited(32)) | {"stream": False}
        await self._ask("nightly", APIS[path], body)

    async def _leave(self, rng: random.Random, turn: int) -> None:
        api = rng.choice(list(APIS.values()))
        body = api.body(story(rng.choice([5, 300]), turn), 2000, stream=rng.random() < 0.5)
        connection = await Connection.ask(self._daemon.url, body, source="leaver", path=api.path)
        await asyncio.sleep(rng.random() * 3)
        await connection.leave()
        self.counts.left["leaver"] += 1

    async def _err(self, rng: random.Random, turn: int) -> None:
        api = rng.choice(list(APIS.values()))
        response = await self._post("erring", api, api.body("", -7))
        assert response.status_code == 400, response.text
        self.counts.refused["erring"] += 1
        await asyncio.sleep(0.5)

    async def _ask(self, source: str, api: Api, body: dict[str, Any]) -> None:
        said = api.said(await self._post(source, api, body))
        self.counts.answered[source] += 1
        self.counts.num_tokens[source] += said.num_tokens

    async def _post(self, source: str, api: Api, body: dict[str, Any]) -> httpx.Response:
        return await self._client.post(api.path, json=body, headers={"X-HomeAI-Source": source})


@dataclass(frozen=True)
class Sample:
    at: float
    memory: tuple[int, ...]  # resident bytes of each process
    files: int  # open in the server


async def observe(daemon: Daemon, until: float) -> list[Sample]:
    server, (engine,) = psutil.Process(daemon.process.pid), daemon.engines
    samples = []
    while (now := time.monotonic()) < until:
        samples.append(Sample(now, (server.memory_info().rss, engine.memory_info().rss), server.num_fds()))
        await asyncio.sleep(SAMPLE_S)
    return samples


def changes(samples: list[Sample]) -> list[float]:
    """Of each process's memory: the median of the last quarter against that of the third, both of the second half."""
    half = samples[len(samples) // 2 :]
    begin, end = half[: len(half) // 2], half[len(half) // 2 :]
    return [
        median(s.memory[process] for s in end) / median(s.memory[process] for s in begin) - 1 for process in range(2)
    ]


@pytest.fixture
def home(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon(SOURCES, *SMALL_CACHES)


async def test_mixed_load_is_served_without_error_and_nothing_grows(home: Daemon) -> None:
    files_before = psutil.Process(home.process.pid).num_fds()
    until = time.monotonic() + SOAK_MINUTES * 60
    async with home.async_client() as client:
        house = House(home, client)
        samples, _ = await asyncio.gather(observe(home, until), house.live(until))
    counts = house.counts
    print(f"\n{counts}\nmemory: {[f'{change:+.1%}' for change in changes(samples)]}")

    await eventually_async(lambda: not home.status()["requests"])
    for source in ("default", "kitchen", "editor", "nightly", "leaver", "erring"):
        assert counts.asked(source) > 0
        rows = await eventually_async(lambda s=source: len(r := home.ledger_rows(s)) == counts.asked(s) and r)
        assert len({row["request_id"] for row in rows}) == len(rows)
        num_refused = sum(row["status"] == 400 for row in rows)
        assert num_refused == counts.refused[source]
        if source != "leaver":
            assert {row["status"] for row in rows} <= {200, 400}
            assert sum(row["num_output_tokens"] for row in rows) == counts.num_tokens[source]
    totals = home.status()["totals"]
    assert totals["finished"] == counts.answered.total() + counts.left.total()
    assert (totals["rejected"], totals["failed"]) == (counts.refused.total(), 0)

    assert max(map(abs, changes(samples))) <= MAX_CHANGE, changes(samples)
    await eventually_async(lambda: psutil.Process(home.process.pid).num_fds() <= files_before + 1)
    assert not [line for line in home.log if " ERROR " in line or " CRITICAL " in line or "Traceback" in line]
