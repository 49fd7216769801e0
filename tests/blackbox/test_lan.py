"""Safe on a LAN: hosts, pages, sizes, times, TLS, several addresses. Cases E14, E16, E17 and I4."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest
import zstandard

from tests.certificates import Certificate, make_certificate
from tests.daemon import Daemon, eventually, eventually_async, free_port
from tests.streaming import CHAT, COMPLETIONS, Connection, Stream, exactly

MAX_BODY_BYTES = 100_000
PACKED = json.dumps(exactly(1)).encode()
GZIPPED = gzip.compress(PACKED, mtime=0)


@pytest.fixture(scope="module")
def other_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def house(start_daemon: Callable[..., Daemon], other_port: int) -> Daemon:
    """Short of patience."""
    return start_daemon(
        f"server.listen=['127.0.0.1:{other_port}']",
        f"server.max_body_bytes={MAX_BODY_BYTES}",
        "server.header_timeout_s=1",
        "server.body_timeout_s=1",
        "server.slow_reader_s=1",
        "server.cors_origins=['https://chat.example']",
    )


def raw(daemon: Daemon, data: bytes) -> bytes:
    """What comes back until the daemon hangs up."""
    url = httpx.URL(daemon.url)
    with socket.create_connection((url.host, url.port), timeout=60) as sock:
        sock.sendall(data)
        with sock.makefile("rb") as answer:
            return answer.read()


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


# ---- several addresses ---------------------------------------------------------------------------------


def test_every_address_is_served(house: Daemon, other_port: int) -> None:
    for url in (house.url, f"http://127.0.0.1:{other_port}"):
        assert httpx.post(f"{url}{COMPLETIONS}", json=exactly(1), timeout=120).status_code == 200


# ---- E17: by which name it is called -------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "GET /v1/models HTTP/1.1\r\nHost: evil.example",
        "GET /v1/models HTTP/1.1\r\nHost:",
        "GET /v1/models HTTP/1.1\r\nX: no host at all",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
        "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost",
        "GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://8.8.8.8",
        "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nAccess-Control-Request-Method: GET",
    ],
)
def test_foreign_host_or_page_is_kept_out(house: Daemon, head: str) -> None:
    answer = raw(house, f"{head}\r\nConnection: close\r\n\r\n".encode())
    assert status_of(answer) == 403
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "homeai.local:8700", "192.168.7.7", "[fd00::7]:8700", "LOCALHOST."])
def test_names_of_this_machine_are_let_in(house: Daemon, host: str) -> None:
    for target in ("/v1/models", f"http://{host}/v1/models"):
        answer = raw(house, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert status_of(answer) == 200, answer


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/models", "/api/chat", "/v1/messages", "/api/status"])
def test_listed_page_is_told_that_it_may_ask(house: Daemon, path: str) -> None:
    headers = {
        "Origin": "https://chat.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, x-stainless-lang",
    }
    answer = httpx.options(f"{house.url}{path}", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-lang"


def test_listed_page_may_read_answers_and_errors(house: Daemon) -> None:
    headers = {"Origin": "https://chat.example"}
    for body, status in ((exactly(1), 200), ({"prompt": [-1]}, 400)):
        answer = httpx.post(f"{house.url}{COMPLETIONS}", json=body, headers=headers, timeout=120)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, headers["Origin"])


# ---- E14: sizes ----------------------------------------------------------------------------------------


def packed(daemon: Daemon, content: bytes, encoding: str) -> httpx.Response:
    headers = {"Content-Encoding": encoding}
    return httpx.post(f"{daemon.url}{COMPLETIONS}", content=content, headers=headers, timeout=120)


def pieces(size: int) -> Iterator[bytes]:
    """A body without a Content-Length."""
    for _ in range(size // 1000):
        yield b" " * 1000


def test_body_that_does_not_say_its_size_is_counted(house: Daemon) -> None:
    answer = httpx.post(f"{house.url}{COMPLETIONS}", content=pieces(10 * MAX_BODY_BYTES), timeout=120)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip", GZIPPED),
        ("x-gzip", GZIPPED),
        ("zstd", zstandard.compress(PACKED)),
        ("ZSTD", zstandard.compress(PACKED)),
        ("identity", PACKED),
    ],
)
def test_packed_body_is_answered(house: Daemon, encoding: str, content: bytes) -> None:
    answer = packed(house, content, encoding)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("encoding", "pack", "num_bytes"), [("gzip", gzip.compress, 50_000_000), ("zstd", zstandard.compress, 500_000_000)]
)
def test_packed_body_is_counted_as_it_is_unpacked(
    house: Daemon, encoding: str, pack: Callable[[bytes], bytes], num_bytes: int
) -> None:
    content = pack(bytes(num_bytes))
    assert len(content) < MAX_BODY_BYTES
    answer = packed(house, content, encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert str(MAX_BODY_BYTES) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip", PACKED),
        ("zstd", PACKED),
        ("gzip", zstandard.compress(PACKED)),
        ("gzip", GZIPPED[:-9]),
        ("zstd", zstandard.compress(PACKED)[:-9]),
        ("br", PACKED),
        ("gzip, zstd", PACKED),
    ],
)
def test_body_that_is_packed_otherwise_is_a_mistake(house: Daemon, encoding: str, content: bytes) -> None:
    answer = packed(house, content, encoding)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("header", [{"X-Big": "x" * 40_000}, {f"X-{i}": "x" for i in range(200)}])
def test_head_that_is_too_large_is_refused(house: Daemon, header: dict[str, str]) -> None:
    answer = httpx.get(f"{house.url}/v1/models", headers=header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "headers_too_large")


# ---- times ---------------------------------------------------------------------------------------------


def test_head_that_does_not_end_is_given_up(house: Daemon) -> None:
    assert status_of(raw(house, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ")) == 408
    assert raw(house, b"") == b""


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_body_that_does_not_end_is_given_up_and_written_down(house: Daemon, path: str) -> None:
    source = f"slow{path.replace('/', '-')}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-HomeAI-Source: {source}\r\nContent-Length: 900\r\n\r\n"
    answer = raw(house, head.encode() + b'{"model"')
    assert status_of(answer) == 408
    (row,) = eventually(lambda: house.ledger_rows(source))
    assert (row["status"], row["reject_reason"]) == (408, "request_timeout")


# ---- E16, I4: a client that does not read --------------------------------------------------------------


async def test_client_that_does_not_read_is_dropped_and_nobody_else(house: Daemon) -> None:
    url = httpx.URL(house.url)
    body = json.dumps(exactly(4000, stream=True, logprobs=20)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nX-HomeAI-Source: deaf\r\n"
    with closing(socket.socket()) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((url.host, url.port))
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await eventually_async(lambda: house.live("deaf"))
        async with house.async_client() as client:
            readers = [Stream(client, exactly(100), source=f"reader-{i}") for i in range(4)]
            for reader in readers:
                await reader.ended()
        assert [(reader.num_tokens, reader.errors, reader.is_done) for reader in readers] == [(100, [], True)] * 4
        await eventually_async(lambda: house.live("deaf") is None)
    (row,) = await asyncio.to_thread(eventually, lambda: house.ledger_rows("deaf"))
    assert (row["status"], row["finish_reason"]) == (499, "abort")
    assert 0 < row["num_output_tokens"] < 4000
    assert any("does not read its answer" in line for line in house.log)
    assert house.status()["batch"]["num_running"] == 0


async def test_client_that_reads_on_is_kept(house: Daemon) -> None:
    """However long its answer takes."""
    asking = await Connection.ask(house.url, exactly(3000, stream=True), source="patient")
    request = await eventually_async(lambda: house.live("patient"))
    await eventually_async(lambda: house.live("patient")["age_s"] > request["age_s"] + 2)
    await asking.leave()
    await eventually_async(lambda: house.live("patient") is None)


# ---- TLS -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_certificate_is_served_and_plain_addresses_stay_plain(
    certificate: Certificate, start_daemon: Callable[..., Daemon]
) -> None:
    plain = f"http://127.0.0.1:{free_port()}"
    daemon = start_daemon(*certificate.settings, f"server.listen=['{plain}']")
    assert daemon.url.startswith("https://127.0.0.1:")
    with daemon.client(verify=certificate.trusting) as client:
        assert client.post(COMPLETIONS, json=exactly(3)).json()["usage"]["completion_tokens"] == 3
        with client.stream("POST", COMPLETIONS, json=exactly(3) | {"stream": True}) as answer:
            assert list(answer.iter_lines())[-2:] == ["data: [DONE]", ""]
    assert httpx.post(f"{plain}{COMPLETIONS}", json=exactly(1), timeout=120).status_code == 200
    with pytest.raises(httpx.HTTPError):
        httpx.get(daemon.url.replace("https", "http"))
