"""Between Home Assistant's code and a server: sees each request as it was sent, and may change or answer it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    status: int
    content_type: str
    pieces: Iterable[bytes]  # sent one by one


class Relay:
    """`with Relay(answer) as relay`: what is sent to `relay.url` is kept in `relay.seen`, and answered by `answer`."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.seen: list[Request] = []
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                relay.seen.append(request)
                told = answer(request)
                self.send_response(told.status)
                self.send_header("content-type", told.content_type)
                self.send_header("connection", "close")  # which is where the answer ends
                self.end_headers()
                for piece in told.pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()
                self.close_connection = True

            do_GET = do_POST = handle_any

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def passing_on(url: str, change: Callable[[Request], Any] = lambda request: None) -> Callable[[Request], Answer]:
    """To the server at `url`. `change` gives another body, or None to leave it as it is."""

    def answer(request: Request) -> Answer:
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        other = change(request)
        body = request.body if other is None else json.dumps(other).encode()
        client = httpx.Client(timeout=120)
        asked = client.build_request(request.method, url + request.path, headers=headers, content=body)
        response = client.send(asked, stream=True)

        def pieces() -> Iterator[bytes]:
            with closing(client), closing(response):
                yield from response.iter_bytes()

        return Answer(response.status_code, response.headers["content-type"], pieces())

    return answer
