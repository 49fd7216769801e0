"""I3: the engine is killed while streams run; they go on in the next one, no token lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.blackbox.asking import ask
from tests.daemon import Daemon, eventually_async
from tests.faults.sitecustomize import POISON
from tests.streaming import COMPLETIONS, Connection, Stream, document, exactly
from tests.torch_model import in_float32

FAULTS = Path(__file__).parent.parent / "faults"
NUM_KILLS = int(os.environ.get("NUM_KILLS", "10"))  # scripts/torture-engine wants more
NUM_STREAMS = 8
WEEK = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, "
FORTY = exactly(40, 2 * WEEK + "Monday,", cache_prompt=False)  # its next tokens are no near-ties


@pytest.fixture(scope="module")
def model_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On torch with numbers fine enough that a text computed in other pieces is the same text: in bfloat16 any two
    tokens with nearly the same chance change places.
    """
    return in_float32(model_path, tmp_path_factory.mktemp("float32")) if model_path.is_dir() else model_path


@pytest.fixture(scope="module")
def mortal(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Its engine gets killed, it stays."""
    return start_daemon(f"residency.max_restarts={10 * NUM_KILLS}", "classes.interactive.queue_timeout_s=600")


def num_restarts_seen(daemon: Daemon, engine: psutil.Process) -> bool:
    return [child.pid for child in daemon.engines] not in ([], [engine.pid])


async def kill(daemon: Daemon) -> None:
    """The engine, and wait until the next one serves."""
    (engine,) = daemon.engines
    engine.kill()
    await eventually_async(lambda: num_restarts_seen(daemon, engine) and daemon.status()["state"] == "resident")


async def test_streams_survive_any_number_of_kills_with_exact_counts(mortal: Daemon) -> None:
    rng = random.Random(7)
    lengths = [rng.randrange(150, 400) + 8 * (NUM_KILLS - 10) for _ in range(NUM_STREAMS)]  # longer than all kills
    async with mortal.async_client() as client:
        bodies = [exactly(length, f"Story number {i}: once", logprobs=0) for i, length in enumerate(lengths)]
        streams = [Stream(client, body) for body in bodies]
        for stream in streams:
            await stream.begun()
        for _ in range(NUM_KILLS):
            await asyncio.sleep(rng.random() * 0.5)  # at any moment, also while they are on their way back
            await kill(mortal)
        for stream, length in zip(streams, lengths, strict=True):
            await stream.ended()
            assert (stream.is_done, stream.errors, stream.num_tokens) == (True, [], length)
            assert sum(len(event["choices"][0]["logprobs"]["tokens"]) for event in with_tokens(stream)) == length
    assert mortal.status()["requests"] == []


def with_tokens(stream: Stream) -> list[dict[str, list[dict[str, dict[str, list[str]]]]]]:
    return [e for e in stream.events if e.get("choices") and e["choices"][0].get("logprobs")]


async def test_text_goes_on_as_it_would_have(mortal: Daemon) -> None:
    """Alone and after a few tokens it is computed again as it was the first time."""
    unbroken = ask(mortal, **FORTY).text
    async with mortal.async_client() as client:
        stream = Stream(client, FORTY)
        await stream.begun()
        await kill(mortal)
        assert (await stream.ended()).text == unbroken


async def test_whole_answers_and_those_in_prefill_or_waiting_are_served_too(mortal: Daemon) -> None:
    async with mortal.async_client() as client:
        whole = asyncio.create_task(client.post(COMPLETIONS, json=exactly(60)))
        reading = Stream(client, exactly(5, document(1500)), source="reading")
        running = [Stream(client, exactly(200)) for _ in range(6)]
        await eventually_async(lambda: mortal.status()["batch"]["num_running"] == 8)
        waiting = Stream(client, exactly(4), source="waiting")
        await eventually_async(lambda: mortal.live("waiting"))
        await kill(mortal)
        new = Stream(client, exactly(3))
        for stream, length in [(reading, 5), (waiting, 4), (new, 3), *((r, 200) for r in running)]:
            assert (await stream.ended()).num_tokens == length
            assert stream.errors == []
        assert (await whole).json()["usage"]["completion_tokens"] == 60


async def test_client_that_leaves_during_the_pause_is_forgotten(mortal: Daemon) -> None:
    leaver = await Connection.ask(mortal.url, exactly(3000), source="leaver")
    await eventually_async(lambda: mortal.live("leaver"))
    (engine,) = mortal.engines
    engine.kill()
    await leaver.leave()
    await eventually_async(lambda: not mortal.live("leaver"))
    assert ask(mortal, **exactly(2)).num_tokens == 2


async def test_hung_engine_is_replaced_and_the_stream_goes_on(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("residency.heartbeat_timeout_s=2")
    async with daemon.async_client() as client:
        stream = Stream(client, exactly(100))
        await stream.begun()
        (engine,) = daemon.engines
        engine.suspend()
        assert (await stream.ended()).num_tokens == 100
        assert num_restarts_seen(daemon, engine)


@pytest.mark.parametrize("fault", ["abort", "error"])
async def test_poisoned_request_fails_alone(
    start_daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("TEST_FAULT", fault)
    daemon = start_daemon()
    async with daemon.async_client() as client:
        running = [Stream(client, exactly(150)) for _ in range(3)]
        for stream in running:
            await stream.begun()
        poisoned = await client.post(COMPLETIONS, json=exactly(5, POISON))
        assert (poisoned.status_code, poisoned.json()["error"]["code"]) == (500, "poisoned_request")
        assert poisoned.headers["x-should-retry"] == "false"
        for stream in running:
            assert ((await stream.ended()).num_tokens, stream.errors) == (150, [])
    assert daemon.status()["state"] == "resident"
