"""A game wants the GPU: the model leaves at once, nobody's answer is lost, and it comes back by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.blackbox.asking import ask
from tests.daemon import Daemon, eventually, eventually_async
from tests.streaming import COMPLETIONS, Stream, exactly

FAKE_GPU = Path(__file__).parent.parent / "fake_gpu"
GAME = [4711, "game", 9.0, 0.9]
SETTINGS = (
    *("residency.share_gpu=on", "residency.gpu_notice_s=0", "residency.gpu_quiet_s=2", "model.num_threads=1"),
    *("classes.coding.when_yielded=wait", "sources=[{name: speaker, class: voice}, {name: editor, class: coding}]"),
)


class Machine:
    """A daemon that reads its GPU from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.daemon: Daemon
        self.set()

    def set(self, *processes: list[object]) -> None:
        """Who uses the GPU beside the daemon."""
        used = sum(float(str(process[2])) for process in processes)
        text = json.dumps({"used": used, "total": 24, "processes": processes})
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)  # at once: it is read at any moment

    @property
    def state(self) -> str:
        return str(self.daemon.status()["state"])

    @property
    def reason(self) -> str:
        return str(self.daemon.status()["residency"]["reason"])


@pytest.fixture(scope="module")
def machine(start_daemon: Callable[..., Daemon], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("gpu") / "gpu.json")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", str(FAKE_GPU))
        monkeypatch.setenv("TEST_GPU", str(machine.path))
        machine.daemon = start_daemon(*SETTINGS)
    return machine


@pytest.fixture(autouse=True)
def _quiet(machine: Machine) -> None:
    machine.set()
    eventually(lambda: machine.daemon.status()["residency"]["others_bytes"] == 0)  # a load accepts what was seen last
    httpx.post(f"{machine.daemon.url}/api/admin/load")
    eventually(lambda: machine.state == "resident")


def test_game_sends_the_model_away_and_it_comes_back_when_it_was_quiet(machine: Machine) -> None:
    daemon = machine.daemon
    machine.set(GAME)
    eventually(lambda: machine.state == "yielded")
    assert daemon.engines == []
    assert "game (4711)" in machine.reason
    assert "9.0 GiB" in machine.reason
    health = httpx.get(f"{daemon.url}/health")
    assert (health.status_code, health.json()["reason"]) == (503, "yielded")
    assert "game" in health.json()["error"]["message"]
    machine.set([4711, "game", 0.5, 0.0])
    eventually(lambda: machine.state == "resident")


def test_requests_meanwhile_are_refused_or_wait_as_their_class_says(machine: Machine) -> None:
    daemon = machine.daemon
    machine.set(GAME)
    eventually(lambda: machine.state == "yielded")
    refused = httpx.post(f"{daemon.url}{COMPLETIONS}", json=exactly(2))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gpu_yielded")
    assert int(refused.headers["retry-after"]) >= 1
    assert "game" in refused.json()["error"]["message"]


async def test_request_that_may_wait_is_answered_when_the_game_is_over(machine: Machine) -> None:
    daemon = machine.daemon
    machine.set(GAME)
    await eventually_async(lambda: machine.state == "yielded")
    async with daemon.async_client() as client:
        waiting = Stream(client, exactly(3), source="editor")
        await eventually_async(lambda: daemon.live("editor"))
        assert daemon.live("editor")["wait_reason"] == "not_resident"
        machine.set()
        assert ((await waiting.ended()).num_tokens, waiting.errors) == (3, [])


async def test_voice_ends_and_the_others_pause_and_go_on_where_they_were(machine: Machine) -> None:
    daemon = machine.daemon
    (engine,) = daemon.engines
    async with daemon.async_client() as client:
        chats = [Stream(client, exactly(500, f"Story {i}: once", logprobs=0)) for i in range(3)]
        voice = Stream(client, exactly(40), source="speaker")
        for stream in (*chats, voice):
            await stream.begun()
        machine.set(GAME)
        assert ((await voice.ended()).num_tokens, voice.errors) == (40, [])
        await eventually_async(lambda: machine.state == "yielded")
        assert not engine.is_running() or engine.status() == "zombie"
        assert len(daemon.status()["requests"]) == 3
        machine.set()
        for stream in chats:
            assert ((await stream.ended()).num_tokens, stream.errors) == (500, [])
            tokens = [e["choices"][0]["logprobs"]["tokens"] for e in stream.events if has_tokens(e)]
            assert sum(map(len, tokens)) == 500


def has_tokens(event: dict[str, list[dict[str, object]]]) -> bool:
    return bool(event.get("choices")) and bool(event["choices"][0].get("logprobs"))


async def test_who_waited_long_enough_is_told_why(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("classes.interactive.queue_timeout_s=1", "model.num_threads=1")
    async with daemon.async_client() as client:
        stream = Stream(client, exactly(3000))
        await stream.begun()
        await client.post("/api/admin/yield")
        (error,) = (await stream.ended()).errors
        assert error["code"] == "queue_timeout"
        assert "the owner gave the device to other programs" in error["message"]
    assert daemon.status()["requests"] == []


def test_owner_may_have_it_back_although_the_game_goes_on(machine: Machine) -> None:
    machine.set(GAME)
    eventually(lambda: machine.state == "yielded")
    httpx.post(f"{machine.daemon.url}/api/admin/load")
    eventually(lambda: machine.state == "resident")
    assert ask(machine.daemon, **exactly(2)).num_tokens == 2
    assert machine.state == "resident"


def test_loan_for_a_while_ends_by_itself(machine: Machine) -> None:
    httpx.post(f"{machine.daemon.url}/api/admin/yield", json={"seconds": 1.5})
    eventually(lambda: machine.state == "yielded")
    eventually(lambda: machine.state == "resident")


async def test_server_that_is_stopped_while_it_is_away_tells_who_waits(
    start_daemon: Callable[..., Daemon],
) -> None:
    """I5"""
    daemon = start_daemon("classes.interactive.when_yielded=wait", "model.num_threads=1")
    async with daemon.async_client() as client:
        await client.post("/api/admin/yield")
        waiting = Stream(client, exactly(3), source="waiting")
        await eventually_async(lambda: daemon.live("waiting"))
        daemon.process.terminate()
        assert (await waiting.ended()).status == 503
    assert await asyncio.to_thread(daemon.stop) == 0
