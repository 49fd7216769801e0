"""What a client may hold and keep waiting: real sockets, before a small application. Cases E16 and I4 too."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from homeai.server.connection import MAX_HEADERS, Connection, ConnectionLimits

SOON_S = 0.2
NEVER_S = 3600.0
PATIENCE_S = 30.0
CHUNK = b"x" * 4096
HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"


@dataclass
class App:
    """Answers `/` at once, `/body` when the body is there, `/early` without it, `/endless` until the client is gone."""

    scopes: list[Scope] = field(default_factory=list)
    num_sent: int = 0
    is_full: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more of an endless answer goes out
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if scope["path"] == "/body":
            while (await receive())["more_body"]:
                pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            await self._endless(receive, send)
        else:
            await send({"type": "http.response.body", "body": b"fine"})

    async def _endless(self, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        writing.cancel()
        self.gone.set()

    async def _write(self, send: Send) -> None:
        message: Message = {"type": "http.response.body", "body": CHUNK, "more_body": True}
        while True:
            sending = asyncio.ensure_future(send(message))
            done, _ = await asyncio.wait({sending}, timeout=SOON_S)
            if not done:
                self.is_full.set()
            await sending
            self.num_sent += 1


@asynccontextmanager
async def serving(app: App, **limits: float) -> AsyncIterator[int]:
    """The port of a server with these limits; the others are out of reach."""
    bounds = {"header_timeout_s": NEVER_S, "body_timeout_s": NEVER_S, "slow_reader_s": NEVER_S} | limits
    protocol = Connection.limited(ConnectionLimits(**bounds))  # type: ignore[arg-type]
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, access_log=False)
    config.load()
    server_state = uvicorn.server.ServerState()

    def connection() -> Connection:
        return protocol(config, server_state, {})

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for client in list(server_state.connections):
            client.transport.abort()
        await server.wait_closed()
        await asyncio.gather(*server_state.tasks, return_exceptions=True)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reader, writer
    finally:
        writer.close()


async def everything(port: int, data: bytes) -> bytes:
    """All that comes back until the server hangs up."""
    async with connected(port) as (reader, writer):
        writer.write(data)
        return await to_the_end(reader)


async def to_the_end(reader: asyncio.StreamReader) -> bytes:
    """Who still writes when the server hangs up learns of it by a reset."""
    came = b""
    with suppress(ConnectionResetError):
        while piece := await reader.read(65536):
            came += piece
    return came


def refusal(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


# ---- the size of a head --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"a: " + b"x" * 2000,
        HEAD + b"x" * 2000 + b": a",
        b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nhost: localhost",
        HEAD + b"\r\n".join(b"a%d: %s" % (i, b"x" * 50) for i in range(40)),
        HEAD + b"\r\n".join(b"a: b" for _ in range(MAX_HEADERS)),
    ],
    ids=["value", "name", "path", "together", "count"],
)
async def test_head_that_is_too_large_is_refused(head: bytes) -> None:
    app = App()
    async with serving(app, max_header_bytes=1024) as port:
        assert refusal(await everything(port, head + b"\r\n\r\n")) == (431, "headers_too_large")
    assert app.scopes == []


async def test_head_that_does_not_end_is_refused() -> None:
    """However it is cut up: what is kept of it is bounded."""
    async with serving(App(), max_header_bytes=1024) as port, connected(port) as (reader, writer):
        writer.write(HEAD + b"a: ")
        answer = asyncio.create_task(to_the_end(reader))
        while not answer.done():
            writer.write(b"x" * 100)
            await asyncio.sleep(0)
        assert refusal(await answer) == (431, "headers_too_large")


async def test_body_is_no_part_of_the_head() -> None:
    app = App()
    body = b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000
    async with serving(app, max_header_bytes=1024) as port:
        answer = await everything(port, body + body + HEAD + b"connection: close\r\n\r\n")
    assert answer.count(b"200 OK") == 3
    assert len(app.scopes) == 3


# ---- the time for a request ----------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"G", HEAD, HEAD + b"a: b"])
async def test_head_that_is_not_finished_in_time_is_refused(begun: bytes) -> None:
    app = App()
    async with serving(app, header_timeout_s=SOON_S) as port:
        assert refusal(await everything(port, begun)) == (408, "request_timeout")
    assert app.scopes == []


async def test_head_that_trickles_is_refused() -> None:
    async with serving(App(), header_timeout_s=SOON_S) as port, connected(port) as (reader, writer):
        writer.write(HEAD)
        answer = asyncio.create_task(to_the_end(reader))
        while not answer.done():
            writer.write(b"a: b\r\n")
            await asyncio.sleep(SOON_S / 10)
        assert refusal(await answer) == (408, "request_timeout")


async def test_who_says_nothing_is_left() -> None:
    async with serving(App(), header_timeout_s=SOON_S) as port:
        assert await everything(port, b"") == b""


async def test_blank_lines_keep_no_connection() -> None:
    """After an answer too: they end the time-out between two requests, and are no request."""
    for before in (b"", HEAD + b"\r\n"):
        async with serving(App(), header_timeout_s=SOON_S) as port, connected(port) as (reader, writer):
            writer.write(before)
            answer = asyncio.create_task(to_the_end(reader))
            while not answer.done():
                writer.write(b"\r\n")
                await asyncio.sleep(SOON_S / 10)
            assert (await answer).count(b"200 OK") == (1 if before else 0)


async def test_second_head_has_its_own_time() -> None:
    async with serving(App(), header_timeout_s=SOON_S) as port, connected(port) as (reader, writer):
        for _ in range(3):
            writer.write(HEAD + b"\r\n")
            assert b"200 OK" in await reader.readuntil(b"0\r\n\r\n")
        writer.write(HEAD)
        assert refusal(await reader.read()) == (408, "request_timeout")


async def test_body_that_nobody_reads_any_more_keeps_no_connection() -> None:
    async with serving(App(), body_timeout_s=SOON_S) as port, connected(port) as (reader, writer):
        writer.write(b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
        answer = asyncio.create_task(to_the_end(reader))
        while not answer.done():
            writer.write(b"x")
            await asyncio.sleep(SOON_S / 10)
        assert b"200 OK" in await answer


async def test_body_that_nobody_wants_any_more_need_not_come() -> None:
    async with serving(App(), body_timeout_s=SOON_S) as port:
        head = b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
        assert b"200 OK" in await everything(port, head)


async def test_request_that_is_being_answered_has_all_the_time() -> None:
    """What is slow then is the model."""
    app = App()
    async with (
        serving(app, header_timeout_s=SOON_S, body_timeout_s=SOON_S) as port,
        connected(port) as (reader, writer),
    ):
        writer.write(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for _ in range(20):
            await reader.readuntil(CHUNK)
            await asyncio.sleep(SOON_S / 5)
        assert not app.gone.is_set()


# ---- where a request goes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "header", "hosts"),
    [
        ("/", "localhost", ["localhost"]),
        ("http://localhost/", "localhost", ["localhost"]),
        ("http://localhost:80/", "LOCALHOST:80", ["LOCALHOST:80"]),
        ("http://[::1]:80/", "[::1]:80", ["[::1]:80"]),
        ("http://evil.example/", "localhost", ["localhost", "evil.example"]),
        ("http://evil.example:80/", "localhost", ["localhost", "evil.example:80"]),
        ("http://localhost/", "evil.example", ["evil.example", "localhost"]),
    ],
)
async def test_host_in_the_target_counts_beside_the_header(target: str, header: str, hosts: list[str]) -> None:
    """E17: `HostGuard` lets no request in that names two."""
    app = App()
    async with serving(app) as port:
        await everything(port, f"GET {target} HTTP/1.1\r\nhost: {header}\r\nconnection: close\r\n\r\n".encode())
    (scope,) = app.scopes
    assert [value.decode() for name, value in scope["headers"] if name == b"host"] == hosts


# ---- readers -------------------------------------------------------------------------------------------


async def test_reader_that_takes_nothing_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """E16, I4: it alone, and what it is sent meanwhile is bounded."""
    caplog.set_level(logging.WARNING, logger="homeai.server")
    app = App()
    async with serving(app, slow_reader_s=SOON_S) as port, asyncio.timeout(PATIENCE_S):
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await app.gone.wait()
        assert b"fine" in await everything(port, HEAD + b"connection: close\r\n\r\n")
    assert ["127.0.0.1 does not read its answer" in record.message for record in caplog.records] == [True]


async def test_reader_that_takes_a_little_at_a_time_is_kept() -> None:
    app = App()
    async with serving(app, slow_reader_s=10 * SOON_S) as port, asyncio.timeout(PATIENCE_S):
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.setblocking(False)
            await loop.sock_sendall(slow, b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await app.is_full.wait()
            num_sent = app.num_sent
            while app.num_sent < num_sent + 50:
                assert await loop.sock_recv(slow, 64 * 1024)
            assert not app.gone.is_set()


async def test_finished_answer_that_nobody_takes_is_dropped() -> None:
    """The request is over; the connection must not stay for its last bytes."""
    closed = asyncio.Event()

    class Watched(Connection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            closed.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20_000_000})

    config = uvicorn.Config(app, http=Watched, lifespan="off", log_config=None)
    config.load()
    protocol = Watched.limited(ConnectionLimits(slow_reader_s=SOON_S))
    loop, state = asyncio.get_running_loop(), uvicorn.server.ServerState()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE_S):
        with socket.create_connection(server.sockets[0].getsockname()) as deaf:
            deaf.sendall(HEAD + b"connection: close\r\n\r\n")
            await closed.wait()
