"""What no request gets past: foreign hosts, endless bodies, answers without a name."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import ANY

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from homeai.errors import BodyTooLarge, RequestTimeout
from homeai.keys import KeyStore
from homeai.server.app import create_app
from homeai.server.guards import CORS, BodyLimit, HostGuard, RequestId
from tests.server.fakes import FakeLedger, make_service

Headers = list[tuple[str, str]]


class FakeApp:
    """Reads the whole body, then answers 200; records what came through."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class FakeConnection:
    """One request in pieces; records what is sent back."""

    def __init__(self, headers: Headers = [], body: Iterable[bytes] = (b"",), kind: str = "http") -> None:  # noqa: B006
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        self.scope: Scope = {"type": kind, "headers": raw}
        self._body = list(body)
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def error(self) -> dict[str, str]:
        return json.loads(self.sent[1]["body"])["error"]


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    with closing(KeyStore(tmp_path / "ledger.db")) as store:
        yield store


# ---- host ----------------------------------------------------------------------------------------------


async def ask_host(*hosts: str, allowed: Iterable[str] = ()) -> FakeConnection:
    connection = FakeConnection([("host", host) for host in hosts])
    await HostGuard(FakeApp(), allowed)(connection.scope, connection.receive, connection.send)
    return connection


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8700",
        "LOCALHOST:8700",
        "localhost.",
        "localhost.:8700",
        "127.0.0.1:8700",
        "192.168.1.5",
        "[::1]:8700",
        "[::1]",
        "[FD00::1]:8700",
        "homeai.local",
        "HomeAI.Local.:8700",
        "anything.localhost",
        f"{socket.gethostname()}:8700",
    ],
)
async def test_names_of_this_machine_are_let_in(host: str) -> None:
    assert (await ask_host(host)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8700",
        ".",
        "evil.example",
        "evil.example:8700",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil-localhost",
        "local",
        "[evil.example]",
        "2130706433",  # 127.0.0.1 as one number
        "user@localhost",
        "\xb2",
    ],
)
async def test_foreign_names_are_kept_out(host: str) -> None:
    connection = await ask_host(host)
    assert connection.status == 403
    assert connection.error["code"] == "host_not_allowed"
    assert "server.allowed_hosts" in connection.error["message"]


async def test_request_without_a_host_is_kept_out() -> None:
    assert (await ask_host()).status == 403


@pytest.mark.parametrize("hosts", [("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost",) * 2])
async def test_request_with_two_hosts_is_kept_out(hosts: tuple[str, str]) -> None:
    assert (await ask_host(*hosts)).status == 403


async def ask_from(origin: str, *, host: str = "localhost", cors_origins: Iterable[str] = ()) -> FakeConnection:
    connection = FakeConnection([("host", host), ("origin", origin)])
    await HostGuard(FakeApp(), ["brain.lan"], cors_origins)(connection.scope, connection.receive, connection.send)
    return connection


PAGES_OF_THE_WEB = [
    "https://evil.example",
    "http://evil.example:8700",
    "http://8.8.8.8",  # anybody may have a page at an address
    "http://8.8.8.8:8700",
    "https://[2606:4700::1111]",
    "http://0.0.0.0:8700",
    "null",
    "",
    "localhost",
    "chrome-extension://abcdef",
]


@pytest.mark.parametrize("origin", PAGES_OF_THE_WEB)
async def test_page_of_the_web_may_not_ask(origin: str) -> None:
    connection = await ask_from(origin)
    assert connection.status == 403
    assert "server.cors_origins" in connection.error["message"]


async def test_page_of_ours_may_ask_at_whatever_address_we_have() -> None:
    """The status page, in a house with public addresses."""
    assert (await ask_from("http://[2001:db8::5]:8700", host="[2001:db8::5]:8700")).status == 200
    assert (await ask_from("http://[2606:4700::1111]:8700", host="[2606:4700::1111]:8700")).status == 200
    assert (await ask_from("http://[2606:4700::1111]:8700", host="[2606:4700::2222]:8700")).status == 403


@pytest.mark.parametrize(
    ("listed", "origin", "status"),
    [
        ("https://chat.example", "https://chat.example", 200),
        ("https://chat.example/", "https://Chat.example", 200),
        ("https://chat.example", "http://chat.example", 403),
        ("https://chat.example", "https://chat.example:8443", 403),
        ("https://chat.example", "https://chat.example.evil", 403),
        ("https://chat.example", "https://chatxexample", 403),
        ("https://*.chat.example", "https://a.chat.example", 200),
        ("https://*.chat.example", "https://chat.example", 403),
        ("chrome-extension://*", "chrome-extension://abcdef", 200),
        ("chrome-extension://*", "https://evil.example", 403),
        ("*", "https://evil.example", 200),
        ("*", "null", 200),
    ],
)
async def test_listed_page_may_ask(listed: str, origin: str, status: int) -> None:
    assert (await ask_from(origin, cors_origins=[listed])).status == status


# ---- what browsers are told ----------------------------------------------------------------------------


async def cross(method: str, origin: str | None, *cors_origins: str, **headers: str) -> FakeConnection:
    """A request through both guards of pages."""
    raw = [("host", "localhost:8700"), *((name.replace("_", "-"), value) for name, value in headers.items())]
    connection = FakeConnection([*raw, ("origin", origin)] if origin is not None else raw)
    connection.scope["method"] = method
    app = HostGuard(CORS(FakeApp(), ["brain.lan"], cors_origins), ["brain.lan"], cors_origins)
    await app(connection.scope, connection.receive, connection.send)
    return connection


PREFLIGHT = {"access_control_request_method": "POST"}


@pytest.mark.parametrize("origin", ["http://localhost:5173", "https://brain.lan", "https://chat.example"])
async def test_page_may_send_any_header_and_read_the_answer(origin: str) -> None:
    """A browser asks first; it is answered without a key, and no route sees it."""
    wanted = "authorization,content-type,x-api-key,anthropic-version,x-stainless-os,openai-organization,x-homeai-source"
    asked = await cross("OPTIONS", origin, "https://chat.example", access_control_request_headers=wanted, **PREFLIGHT)
    assert asked.status == 200
    assert asked.headers["access-control-allow-origin"] == origin
    assert asked.headers["access-control-allow-headers"] == wanted
    assert "POST" in asked.headers["access-control-allow-methods"]
    answer = await cross("POST", origin, "https://chat.example")
    assert answer.headers["access-control-allow-origin"] == origin
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-homeai-notes"} <= set(exposed)
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
async def test_page_of_the_web_is_told_nothing(method: str) -> None:
    connection = await cross(method, "https://evil.example", "https://chat.example", **PREFLIGHT)
    assert connection.status == 403
    assert not any(name.startswith("access-control") for name in connection.headers)


async def test_browser_never_sends_what_it_keeps_for_us() -> None:
    """Credentials: there are none."""
    answer = await cross("POST", "http://localhost:5173")
    assert "access-control-allow-credentials" not in answer.headers


async def test_program_is_told_nothing_about_origins() -> None:
    answer = await cross("POST", None)
    assert "access-control-allow-origin" not in answer.headers


async def test_page_of_the_web_may_reach_into_the_house_when_it_is_listed() -> None:
    headers = PREFLIGHT | {"access_control_request_private_network": "true"}
    asked = await cross("OPTIONS", "https://chat.example", "https://chat.example", **headers)
    assert (asked.status, asked.headers["access-control-allow-private-network"]) == (200, "true")


@pytest.mark.parametrize(
    "origin", ["http://localhost:8700", "https://brain.lan", "http://192.168.1.5", "http://[::1]:80"]
)
async def test_page_of_the_house_may_ask(origin: str) -> None:
    assert (await ask_from(origin)).status == 200


@pytest.mark.parametrize("allowed", ["brain.lan", "Brain.LAN", "brain.lan.", "brain.lan:8700"])
async def test_allowed_name_is_let_in_however_it_is_written(allowed: str) -> None:
    for host in ("brain.lan", "BRAIN.lan:8700", "brain.lan."):
        assert (await ask_host(host, allowed=[allowed])).status == 200
    assert (await ask_host("other.lan", allowed=[allowed])).status == 403


async def test_only_requests_have_a_host() -> None:
    connection = FakeConnection(kind="lifespan")
    await HostGuard(FakeApp(), ())(connection.scope, connection.receive, connection.send)
    assert connection.status == 200


# ---- body ----------------------------------------------------------------------------------------------


async def send_body(*pieces: bytes, length: str | None = None, limit: int = 10) -> FakeApp:
    app = FakeApp()
    connection = FakeConnection([("content-length", length)] if length is not None else [], pieces)
    await BodyLimit(app, limit)(connection.scope, connection.receive, connection.send)
    return app


@pytest.mark.parametrize("pieces", [(b"",), (b"0123456789",), (b"01234", b"56789"), (b"",) * 20])
async def test_body_up_to_the_limit_is_read(pieces: tuple[bytes, ...]) -> None:
    assert (await send_body(*pieces)).bodies == [b"".join(pieces)]


async def test_bytes_are_counted_as_they_come() -> None:
    with pytest.raises(BodyTooLarge, match="11 bytes > 10 maximum"):
        await send_body(b"01234", b"56789", b"0", b"never read")


@pytest.mark.parametrize("length", ["1", "0", "", "-5", "many", "\xb2"])
async def test_announced_length_is_not_believed_when_it_is_small(length: str) -> None:
    with pytest.raises(BodyTooLarge):
        await send_body(b"0" * 11, length=length)


async def test_announced_length_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(BodyTooLarge, match="11 bytes > 10 maximum"):
        await send_body(b"", length="11")


async def test_some_paths_take_larger_bodies_as_slowly() -> None:
    for path, limit, timeout in (("/", 4, r"0\.01"), ("/upload", 10, r"0\.025")):
        guard = BodyLimit(FakeApp(), 4, 0.01, {"/upload": 10})
        fitting, too_large = FakeConnection(body=[b"0" * limit]), FakeConnection(body=[b"0" * (limit + 1)])
        slow = SlowConnection(body=[b"0123"])
        for connection in (fitting, too_large, slow):
            connection.scope["path"] = path
        await guard(fitting.scope, fitting.receive, fitting.send)
        with pytest.raises(BodyTooLarge, match=f"{limit + 1} bytes > {limit} maximum"):
            await guard(too_large.scope, too_large.receive, too_large.send)
        with pytest.raises(RequestTimeout, match=f"within {timeout} s"):
            await guard(slow.scope, slow.receive, slow.send)


class SlowConnection(FakeConnection):
    """Its last piece never comes."""

    async def receive(self) -> Message:
        if self._body:
            return await super().receive() | {"more_body": True}
        await asyncio.Event().wait()
        raise AssertionError


async def test_body_that_does_not_end_is_given_up() -> None:
    connection = SlowConnection(body=[b"0123"])
    with pytest.raises(RequestTimeout, match=r"4 bytes within 0\.01 s, and more to come"):
        await BodyLimit(FakeApp(), 10, 0.01)(connection.scope, connection.receive, connection.send)


async def test_body_that_trickles_is_given_up() -> None:
    """The time is for all of it, not for each piece."""

    class Trickle(FakeConnection):
        async def receive(self) -> Message:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b"", "more_body": True}

    connection = Trickle()
    with pytest.raises(RequestTimeout):
        await BodyLimit(FakeApp(), 10, 0.01)(connection.scope, connection.receive, connection.send)


async def test_waiting_for_the_client_to_leave_is_no_part_of_the_body() -> None:
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"] is False
        asyncio.get_running_loop().call_later(0.05, gone.set)
        assert (await receive())["type"] == "http.disconnect"

    class Leaving(FakeConnection):
        async def receive(self) -> Message:
            if self._body:
                return await super().receive()
            await gone.wait()
            return {"type": "http.disconnect"}

    connection = Leaving(body=[b"{}"])
    await BodyLimit(app, 10, 0.01)(connection.scope, connection.receive, connection.send)


@pytest.mark.parametrize("announced", [True, False])
async def test_too_large_a_body_is_refused_and_written_down(announced: bool, keys: KeyStore) -> None:
    """Through the whole application: whoever asked has a row in the ledger."""
    ledger = FakeLedger()
    app = create_app(make_service(keys, ("server.max_body_bytes", "10"), ledger=ledger))
    body = b"x" * 11
    headers = {"x-homeai-source": "hub"} | ({} if announced else {"transfer-encoding": "chunked"})
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert [(row.source, row.status) for row in ledger.rows] == [("hub", 413)]


# ---- id ------------------------------------------------------------------------------------------------


async def ask_id(*ids: str) -> dict[str, str]:
    connection = FakeConnection([("x-request-id", value) for value in ids])
    await RequestId(FakeApp())(connection.scope, connection.receive, connection.send)
    return connection.headers


async def test_answer_has_an_id_of_its_own_under_both_names() -> None:
    first, second = await ask_id(), await ask_id()
    assert first["x-request-id"] == first["request-id"]
    assert first["x-request-id"]
    assert first["x-request-id"] != second["x-request-id"]


async def test_id_that_the_client_chose_comes_back() -> None:
    assert (await ask_id("mine"))["x-request-id"] == "mine"


async def test_chosen_id_is_bounded() -> None:
    assert (await ask_id("x" * 1000))["x-request-id"] == "x" * 128


async def test_request_has_an_id_of_ours_beside_the_client_s() -> None:
    """Two clients may choose the same."""
    first, second = (FakeConnection([("x-request-id", "mine")]) for _ in range(2))
    for connection in (first, second):
        await RequestId(FakeApp())(connection.scope, connection.receive, connection.send)
    states = [connection.scope["state"] for connection in (first, second)]
    assert [state["client_request_id"] for state in states] == ["mine", "mine"]
    assert states[0]["request_id"] != states[1]["request_id"]


@pytest.mark.parametrize(
    ("method", "path", "host", "status"),
    [
        ("GET", "/nowhere", "localhost", 404),
        ("PUT", "/v1/completions", "localhost", 405),
        ("POST", "/v1/completions", "localhost", 400),
        ("POST", "/v1/completions", "evil.example", 403),
    ],
)
async def test_every_error_has_an_id_too(method: str, path: str, host: str, status: int, keys: KeyStore) -> None:
    ledger = FakeLedger()
    transport = httpx.ASGITransport(create_app(make_service(keys, ledger=ledger)), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        own = await client.request(method, path, content=b"{")
        chosen = await client.request(method, path, content=b"{", headers={"x-request-id": "mine"})
    assert own.status_code == chosen.status_code == status
    assert own.headers["x-request-id"]
    assert chosen.headers["x-request-id"] == "mine"
    expected = [(own.headers["x-request-id"], None), (ANY, "mine")] if status == 400 else []
    assert [(row.request_id, row.client_request_id) for row in ledger.rows] == expected


async def test_empty_id_is_none() -> None:
    assert (await ask_id(""))["x-request-id"]
