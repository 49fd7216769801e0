"""From the first byte to the end: clients that leave, engines that die, daemons that stop. Cases A1 to A12, I5."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import httpx
import psutil
import pytest

from tests.daemon import Daemon, eventually, eventually_async, is_alive
from tests.streaming import CHAT, COMPLETIONS, Connection, Stream, document, exactly

ENDLESS = exactly(4000)
READS = ["/", "/static/status.js", "/health", "/v1/health", "/metrics", "/api/status", "/v1/models", "/v1/models/x"]


@pytest.fixture(scope="module")
def two_seats(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("scheduler.max_num_seqs=2")


@pytest.fixture(scope="module")
def one_seat(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("scheduler.max_num_seqs=1")


# ---- clients that leave --------------------------------------------------------------------------------


def is_waiting(request: dict[str, object]) -> bool:
    return request["status"] == "waiting" and request["wait_reason"] == "sequence_slot"


def is_reading(request: dict[str, object]) -> bool:
    return request["status"] == "running" and request["num_output_tokens"] == 0


def is_writing(request: dict[str, object]) -> bool:
    return request["num_output_tokens"] > 0


@pytest.mark.parametrize("streams", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize(
    ("state", "num_neighbours", "prompt"),
    [(is_waiting, 2, "Once"), (is_reading, 1, document(4000)), (is_writing, 1, "Once")],
    ids=["waiting", "reading", "writing"],
)
async def test_client_that_leaves_frees_its_place_and_disturbs_nobody(
    two_seats: Daemon,
    streams: bool,
    state: Callable[[dict[str, object]], bool],
    num_neighbours: int,
    prompt: str | list[int],
) -> None:
    async with two_seats.async_client() as client:
        neighbours = [Stream(client, exactly(64), source=f"neighbour-{i}") for i in range(num_neighbours)]
        for neighbour in neighbours:
            await neighbour.begun()
        num_ledger_rows = len(two_seats.ledger_rows("victim"))
        body = exactly(2000, prompt, stream=streams, cache_prompt=False)
        victim = await Connection.ask(two_seats.url, body, source="victim")
        await eventually_async(lambda: (seen := two_seats.live("victim")) and state(seen))
        await victim.leave()
        await eventually_async(lambda: two_seats.live("victim") is None)
        for neighbour in neighbours:
            await neighbour.ended()
            assert (neighbour.num_tokens, neighbour.finish_reason, neighbour.is_done) == (64, "length", True)
    rows = await eventually_async(lambda: two_seats.ledger_rows("victim")[num_ledger_rows:])
    assert [(row["status"], row["finish_reason"]) for row in rows] == [(499, "abort")]


async def test_client_that_leaves_the_queue_was_never_computed_a2(one_seat: Daemon) -> None:
    async with one_seat.async_client() as client:
        first = Stream(client, exactly(60))
        await first.begun()
        second = await Connection.ask(one_seat.url, exactly(500, document(500)), source="second")
        await eventually_async(lambda: one_seat.live("second"))
        await second.leave()
        assert (await first.ended()).num_tokens == 60
    (row,) = await eventually_async(lambda: one_seat.ledger_rows("second"))
    assert (row["num_output_tokens"], row["queue_s"], row["ttft_s"]) == (0, None, None)


async def test_answer_is_the_same_whoever_leaves_the_queue_behind_it_a3(one_seat: Daemon) -> None:
    async with one_seat.async_client() as client:
        alone = await Stream(client, exactly(60, cache_prompt=False)).ended()
        first = Stream(client, exactly(60, cache_prompt=False))
        await first.begun()
        second = await Connection.ask(one_seat.url, exactly(500), source="leaves-behind")
        await eventually_async(lambda: one_seat.live("leaves-behind"))
        await second.leave()
        assert (await first.ended()).text == alone.text


async def test_request_after_a_disconnect_is_served_a5(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        stream = Stream(client, ENDLESS)
        await stream.begun()
        await stream.leave()
        assert (await client.post(COMPLETIONS, json=exactly(3))).json()["usage"]["completion_tokens"] == 3
        assert (await client.get("/health")).status_code == 200


async def test_several_choices_end_together_when_their_client_leaves(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        stream = Stream(client, ENDLESS | {"n": 3, "temperature": 1}, source="three")
        await stream.begun()
        assert sum(r["source"] == "three" for r in daemon.status()["requests"]) == 3
        await stream.leave()
    await eventually_async(lambda: daemon.live("three") is None)
    await eventually_async(lambda: [row["status"] for row in daemon.ledger_rows("three")] == [499] * 3)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_read_to_its_end_leaves_the_connection_usable_a6(daemon: Daemon, path: str) -> None:
    message = {"messages": [{"role": "user", "content": "Hello"}]} if path == CHAT else {"prompt": "Hello"}
    body = message | {"max_tokens": 4, "stream": True}
    with daemon.client(limits=httpx.Limits(max_connections=1)) as client:
        for _ in range(3):
            assert client.post(path, json=body).text.endswith("data: [DONE]\n\n")
    with daemon.client() as client:
        assert client.post(path, json=message | {"max_tokens": 4}).is_success


async def test_a_second_request_does_not_interrupt_the_first_a8(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        first = Stream(client, exactly(40))
        await first.begun()
        second = await Stream(client, exactly(10)).ended()
        assert (second.num_tokens, (await first.ended()).num_tokens) == (10, 40)


# ---- looking is free -----------------------------------------------------------------------------------


async def test_only_inference_is_limited(start_daemon: Callable[..., Daemon]) -> None:
    busy = start_daemon("scheduler.max_num_seqs=1", "classes.interactive.max_waiting=0")
    async with busy.async_client() as client:
        stream = Stream(client, ENDLESS)
        await stream.begun()
        assert (await client.post(COMPLETIONS, json=exactly(1))).status_code == 429
        answers = await asyncio.gather(*(client.get(path) for path in READS for _ in range(5)))
        assert {answer.status_code for answer in answers if not answer.url.path.endswith("/x")} == {200}
        await stream.leave()


def test_looking_changes_nothing(daemon: Daemon) -> None:
    eventually(lambda: not daemon.status()["requests"])

    def lasting() -> dict[str, object]:
        return {key: daemon.status()[key] for key in ("state", "batch", "kv", "totals", "requests", "classes")}

    before, engines = lasting(), daemon.engines
    with daemon.client() as client:
        for path in READS * 3:
            client.get(path)
            client.head(path)
        with client.stream("GET", "/api/status/events") as events:
            assert next(events.iter_lines()).startswith("data: ")
    assert (lasting(), daemon.engines) == (before, engines)


# ---- an engine that dies -------------------------------------------------------------------------------


async def test_an_engine_that_died_too_often_stays_down(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("residency.max_restarts=0")
    (engine,) = daemon.engines
    async with daemon.async_client() as waiting:
        stream = Stream(waiting, ENDLESS)
        await stream.begun()
        engine.kill()
        assert [error["code"] for error in (await stream.ended()).errors] == ["service_unavailable"]
        assert not stream.is_done
    eventually(lambda: daemon.status()["state"] == "failed")
    with daemon.client() as client:
        assert client.get("/health").json()["status"] == "failed"
        refused = client.post(COMPLETIONS, json=exactly(1))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert client.get("/").is_success
    assert daemon.engines == []


async def test_engine_does_not_outlive_its_parent(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    (engine,) = daemon.engines
    client = await Connection.ask(daemon.url, exactly(5, document(4000)), source="reader")
    await eventually_async(lambda: daemon.live("reader"))
    daemon.process.kill()
    await eventually_async(lambda: not is_alive(engine))
    await client.leave()


# ---- a daemon that stops -------------------------------------------------------------------------------


async def test_sigterm_lets_everybody_finish_and_takes_nobody_new(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("scheduler.max_num_seqs=2", "server.drain_timeout_s=300")
    (engine,) = daemon.engines
    async with daemon.async_client() as client:
        streams = [Stream(client, exactly(60)) for _ in range(2)]
        for stream in streams:
            await stream.begun()
        waiting = Stream(client, exactly(10), source="waiting")
        whole = asyncio.create_task(client.post(COMPLETIONS, json=exactly(10)))
        await eventually_async(lambda: len(daemon.status()["requests"]) == 4)

        daemon.process.send_signal(signal.SIGTERM)
        await eventually_async(lambda: daemon.status()["state"] == "draining")
        late = await client.post(COMPLETIONS, json=exactly(1))
        assert late.status_code == 503
        assert int(late.headers["retry-after"]) > 0
        assert (await client.get("/health")).json()["status"] == "draining"

        assert [(await s.ended()).num_tokens for s in (*streams, waiting)] == [60, 60, 10]
        assert all(s.is_done for s in (*streams, waiting))
        assert (await whole).json()["usage"]["completion_tokens"] == 10
    assert daemon.process.wait(60) == 0
    assert not is_alive(engine)


async def test_what_does_not_end_in_time_is_told(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("server.drain_timeout_s=0")
    async with daemon.async_client() as client:
        stream = Stream(client, ENDLESS)
        await stream.begun()
        daemon.process.send_signal(signal.SIGTERM)
        await stream.ended()
        assert [error["code"] for error in stream.errors] == ["service_unavailable"]
        assert not stream.is_done
    assert daemon.process.wait(60) == 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_idle_daemon_stops_at_once_and_takes_its_engine_along(start_daemon: Callable[..., Daemon], stop: int) -> None:
    daemon = start_daemon()
    (engine,) = daemon.engines
    daemon.process.send_signal(stop)
    assert daemon.process.wait(60) == 0
    assert not psutil.pid_exists(engine.pid)
    assert not any("Traceback" in line for line in daemon.log)
