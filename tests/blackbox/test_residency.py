"""The model comes and goes: by the owner's word, by idleness, by a keep_alive; nobody's request is lost over it.

Cases A10, A11, A14, H9, H10, and the owner's commands. `test_gpu_sharing.py` has the other programs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import pytest

from tests.blackbox.asking import ask
from tests.blackbox.model_copies import copy_of, weights_of
from tests.daemon import Daemon, eventually, eventually_async
from tests.streaming import COMPLETIONS, Connection, Stream, exactly

READINGS = ("/health", "/health/ready", "/metrics", "/api/status", "/v1/models", "/api/tags", "/api/ps", "/props", "/")


@pytest.fixture(scope="module")
def house(start_daemon: Callable[..., Daemon]) -> Daemon:
    patient = "residency.drain_timeout_s=300", "classes.interactive.queue_timeout_s=600"
    return start_daemon(*patient, "model.num_threads=1")


@pytest.fixture
def resident(house: Daemon) -> Daemon:
    """Whatever the test before it left."""
    control(house, "load")
    eventually(lambda: house.status()["state"] == "resident")
    return house


@pytest.fixture(scope="module")
def dozy(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Asleep as soon as nobody needs it."""
    return start_daemon("residency.policy=idle", "residency.idle_timeout_s=0.2", "model.num_threads=1")


@pytest.fixture
def asleep(dozy: Daemon) -> Daemon:
    control(dozy, "unload")  # takes back what a test asked for
    eventually(lambda: dozy.status()["state"] == "sleeping")
    return dozy


def control(daemon: Daemon, what: str, **fields: object) -> dict[str, object]:
    response = httpx.post(f"{daemon.url}/api/admin/{what}", json=fields, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, object] = response.json()
    return answer


def homeai(daemon: Daemon, *args: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "homeai", *args, "--url", daemon.url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def rss(daemon: Daemon) -> int:
    """Of the daemon and all of its children."""
    process = psutil.Process(daemon.process.pid)
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])


# ---- unload and load -----------------------------------------------------------------------------------


def test_unload_ends_the_process_and_its_memory_is_gone(resident: Daemon) -> None:
    before = rss(resident)
    assert homeai(resident, "unload") == "sleeping"
    assert resident.engines == []
    assert rss(resident) < before - 300e6
    assert httpx.get(f"{resident.url}/health").json() == {"status": "sleeping"}
    assert httpx.get(f"{resident.url}/health/ready").status_code == 503
    assert homeai(resident, "load") == "resident"
    assert len(resident.engines) == 1
    assert httpx.get(f"{resident.url}/health/ready").json() == {"status": "ok"}


def test_memory_is_the_same_after_many_loads(resident: Daemon) -> None:
    server = psutil.Process(resident.process.pid)

    def cycle() -> int:
        control(resident, "unload")
        eventually(lambda: resident.status()["state"] == "sleeping")
        assert ask(resident, **exactly(2)).num_tokens == 2
        return int(server.memory_info().rss)

    cycle()
    first = cycle()
    assert max(cycle() for _ in range(4)) < first + 20e6
    assert server.num_fds() < 60


async def test_request_after_an_unload_loads_it_and_is_answered(resident: Daemon) -> None:
    control(resident, "unload")
    await eventually_async(lambda: resident.status()["state"] == "sleeping")
    assert ask(resident, **exactly(3)).num_tokens == 3
    assert resident.status()["state"] == "resident"


async def test_unload_lets_what_runs_end_and_what_comes_waits_for_the_next_load(resident: Daemon) -> None:
    (engine,) = resident.engines
    async with resident.async_client() as client:
        running = Stream(client, exactly(100))
        await running.begun()
        control(resident, "unload")
        late = Stream(client, exactly(5, "Late"))
        assert ((await running.ended()).num_tokens, running.errors) == (100, [])
        assert ((await late.ended()).num_tokens, late.errors) == (5, [])
    assert [child.pid for child in resident.engines] != [engine.pid]


async def test_what_does_not_end_in_time_is_cut_off_and_told(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("residency.drain_timeout_s=0.2")
    async with daemon.async_client() as client:
        endless = Stream(client, exactly(5000))
        await endless.begun()
        control(daemon, "unload")
        (error,) = (await endless.ended()).errors
        assert error["code"] == "service_unavailable"
        await eventually_async(lambda: daemon.status()["state"] == "sleeping")
        assert daemon.status()["requests"] == []


async def test_a11_impatient_clients_share_one_load_and_do_not_end_it(resident: Daemon) -> None:
    control(resident, "unload")
    await eventually_async(lambda: resident.status()["state"] == "sleeping")
    loads = resident.status()["residency"]["num_loads"]
    impatient = [await Connection.ask(resident.url, exactly(4), source=f"leaver{i}") for i in range(20)]
    async with resident.async_client() as client:
        patient = [Stream(client, exactly(4)) for _ in range(4)]
        for leaver in impatient:
            await leaver.leave()
        for stream in patient:
            assert ((await stream.ended()).num_tokens, stream.errors) == (4, [])
    await eventually_async(lambda: not resident.status()["requests"])
    assert resident.status()["residency"]["num_loads"] == loads + 1


async def test_a11_load_goes_on_when_the_only_client_leaves(resident: Daemon) -> None:
    control(resident, "unload")
    await eventually_async(lambda: resident.status()["state"] == "sleeping")
    leaver = await Connection.ask(resident.url, exactly(4), source="leaver")
    await eventually_async(lambda: resident.status()["state"] != "sleeping")
    await leaver.leave()
    await eventually_async(lambda: resident.status()["state"] == "resident")


async def test_a10_commands_and_requests_at_the_same_moment_all_come_to_an_end(resident: Daemon) -> None:
    async with resident.async_client() as client:
        streams = []
        for what in ("unload", "load", "unload", "yield", "load", "reload", "unload", "load"):
            streams += [Stream(client, exactly(10, f"Number {len(streams) + i}")) for i in range(2)]
            await client.post(f"/api/admin/{what}")
            await asyncio.sleep(0.05)
        for stream in streams:
            await stream.ended()
            served = (stream.num_tokens, stream.errors) == (10, [])
            assert served or stream.errors[0]["code"] in ("gpu_yielded", "service_unavailable")
        assert sum(not stream.errors for stream in streams) >= len(streams) // 2
    await eventually_async(lambda: resident.status()["state"] == "resident")
    assert ask(resident, **exactly(2)).num_tokens == 2


# ---- idleness and wishes -------------------------------------------------------------------------------


def test_it_sleeps_when_nobody_asks_and_the_next_request_wakes_it(asleep: Daemon) -> None:
    assert asleep.engines == []
    assert ask(asleep, **exactly(2)).num_tokens == 2
    eventually(lambda: asleep.status()["state"] == "sleeping")


def test_a14_looking_neither_wakes_it_nor_keeps_it(asleep: Daemon) -> None:
    for path in READINGS:
        httpx.get(f"{asleep.url}{path}")
    assert asleep.status()["state"] == "sleeping"
    assert httpx.get(f"{asleep.url}/props").json()["is_sleeping"] is True
    ask(asleep, **exactly(2))

    def look() -> bool:
        for path in READINGS:
            httpx.get(f"{asleep.url}{path}")
        return asleep.engines == []

    eventually(look)


def test_h10_keep_alive_of_any_api_is_a_wish(asleep: Daemon) -> None:
    response = httpx.post(f"{asleep.url}{COMPLETIONS}", json=exactly(1, keep_alive="1h"), timeout=60)
    assert "x-homeai-notes" not in response.headers
    assert 3500 < asleep.status()["residency"]["expires_in_s"] <= 3600
    (model,) = httpx.get(f"{asleep.url}/api/ps").json()["models"]
    left = datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)
    assert 3500 < left.total_seconds() <= 3600
    body = {"model": "default", "prompt": "Hi", "keep_alive": -1, "options": {"num_predict": 1}}
    httpx.post(f"{asleep.url}/api/generate", json=body, headers={"X-HomeAI-Source": "b"}, timeout=60)
    assert asleep.status()["residency"]["reason"] == "a client asked to keep it loaded"


def test_h9_wish_of_nothing_takes_back_ones_own_wish_only(asleep: Daemon) -> None:
    def wish(source: str, keep_alive: object) -> None:
        body = exactly(1, keep_alive=keep_alive)
        httpx.post(f"{asleep.url}{COMPLETIONS}", json=body, headers={"X-HomeAI-Source": source}, timeout=60)

    wish("anna", "1h")
    wish("ben", "2h")
    wish("ben", "0")
    assert 3500 < asleep.status()["residency"]["expires_in_s"] <= 3600
    wish("anna", 0)
    eventually(lambda: asleep.status()["state"] == "sleeping")


def test_ollamas_load_and_unload_are_wishes_too(asleep: Daemon) -> None:
    loaded = httpx.post(f"{asleep.url}/api/generate", json={"model": "default", "keep_alive": "1h"}, timeout=60)
    assert loaded.status_code == 200
    assert asleep.status()["state"] == "resident"
    left = httpx.post(f"{asleep.url}/api/generate", json={"model": "default", "keep_alive": 0}, timeout=60)
    assert "nobody else" in left.headers["x-homeai-notes"]
    eventually(lambda: asleep.status()["state"] == "sleeping")


def test_pin_keeps_it_whatever_the_policy_says(asleep: Daemon) -> None:
    assert homeai(asleep, "pin") == "resident"
    assert asleep.status()["residency"]["reason"] == "the owner wants the model to stay"
    ask(asleep, **exactly(1, keep_alive=0))
    assert asleep.status()["residency"]["expires_in_s"] is None


def test_outside_of_its_hours_it_does_not_even_start(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(
        "residency.policy=schedule", "residency.hours='00:00-00:01'", "residency.outside_hours=refuse"
    )
    refused = httpx.post(f"{daemon.url}{COMPLETIONS}", json=exactly(1))
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 60
    assert "residency.hours" in refused.json()["error"]["message"]
    assert httpx.get(f"{daemon.url}/health").status_code == 503
    assert daemon.engines == []


# ---- pause ---------------------------------------------------------------------------------------------


async def test_paused_class_waits_and_others_go_on(resident: Daemon) -> None:
    async with resident.async_client() as client:
        running = Stream(client, exactly(60))
        await running.begun()
        homeai(resident, "pause", "interactive")
        waiting = Stream(client, exactly(2), source="waiting")
        await eventually_async(lambda: resident.live("waiting"))
        assert ((await running.ended()).num_tokens, running.errors) == (60, [])
        assert resident.live("waiting")["status"] == "waiting"
        assert resident.status()["residency"]["paused"] == ["interactive"]
        homeai(resident, "resume", "interactive")
        assert (await waiting.ended()).num_tokens == 2


async def test_who_leaves_a_paused_class_is_forgotten(resident: Daemon) -> None:
    control(resident, "pause", **{"class": "interactive"})
    leaver = await Connection.ask(resident.url, exactly(4), source="leaver")
    await eventually_async(lambda: resident.live("leaver"))
    await leaver.leave()
    await eventually_async(lambda: not resident.live("leaver"))
    control(resident, "resume", **{"class": "interactive"})


# ---- reload --------------------------------------------------------------------------------------------


async def test_reload_under_load_loses_nobody(resident: Daemon) -> None:
    (engine,) = resident.engines
    async with resident.async_client() as client:
        streams = [Stream(client, exactly(50, f"Story {i}: once")) for i in range(30)]
        await streams[0].begun()
        control(resident, "reload")
        for stream in streams:
            assert ((await stream.ended()).num_tokens, stream.errors) == (50, [])
    await eventually_async(lambda: [child.pid for child in resident.engines] not in ([], [engine.pid]))


async def test_another_model_takes_over_the_queue(resident: Daemon, fim_model_path: Path, model_path: Path) -> None:
    async with resident.async_client() as client:
        running = [Stream(client, exactly(150, f"Story {i}: once")) for i in range(8)]
        for stream in running:
            await stream.begun()
        waiting = [Stream(client, exactly(5, f"Waiting {i}")) for i in range(4)]
        numbers = Stream(client, exactly(5, [2, 3, 4]))
        named = Stream(client, exactly(5, model=model_path.stem))
        await eventually_async(lambda: [r["status"] for r in resident.status()["requests"]].count("waiting") == 6)
        control(resident, "reload", model=str(fim_model_path))
        for stream in running:
            assert ((await stream.ended()).num_tokens, stream.errors) == (150, [])
        for stream in waiting:
            assert ((await stream.ended()).num_tokens, stream.errors) == (5, [])
            assert stream.events[0]["model"] == fim_model_path.stem
        assert "another model was loaded" in (await numbers.ended()).errors[0]["message"]
        assert (await named.ended()).errors[0]["code"] == "model_not_found"
    assert resident.status()["model"]["file"] == fim_model_path.name
    assert homeai(resident, "reload", str(model_path)) == "resident"
    assert resident.status()["model"]["file"] == model_path.name


def test_file_that_is_no_model_changes_nothing(resident: Daemon, tmp_path: Path) -> None:
    (engine,) = resident.engines
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    for model in (str(broken), "no-such-model"):
        response = httpx.post(f"{resident.url}/api/admin/reload", json={"model": model}, timeout=60)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    assert [child.pid for child in resident.engines] == [engine.pid]


def test_model_that_cannot_be_loaded_after_all_makes_way_for_the_one_before(
    resident: Daemon, model_path: Path, tmp_path: Path
) -> None:
    """Its head is that of a model; its weights are cut."""
    cut = copy_of(model_path, tmp_path, "cut")
    weights = weights_of(cut)
    os.truncate(weights, weights.stat().st_size - 100_000_000)
    response = httpx.post(f"{resident.url}/api/admin/reload", json={"model": str(cut)}, timeout=60)
    if response.is_success:  # else its head said enough
        eventually(lambda: any("the model before it comes back" in line for line in resident.log))
    eventually(lambda: resident.status()["state"] == "resident")
    assert resident.status()["model"]["file"] == model_path.name
    assert ask(resident, **exactly(2)).num_tokens == 2


# ---- who may ---------------------------------------------------------------------------------------------


def test_only_an_admin_key_or_the_machine_itself_may(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("server.auth=keys")
    plain, admin = daemon.keys("add", "tablet"), daemon.keys("add", "owner", "--admin")
    for token, status in ((None, 401), (plain, 403), (admin, 200)):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        response = httpx.post(f"{daemon.url}/api/admin/pin", headers=headers)
        assert response.status_code == status, response.text


def test_parts_of_the_start_are_told_and_in_the_log(daemon: Daemon) -> None:
    startup = daemon.status()["startup"]
    assert list(startup["parts_s"]) == ["launch", "imports", "weights", "context", "warm-up", "pins"]
    assert 0 < sum(startup["parts_s"].values()) <= startup["total_s"] + 0.02, "processes tell their age in ticks"
    assert startup["vocabulary_s"] > 0
    assert any("resident after" in line and "weights" in line for line in daemon.log)
