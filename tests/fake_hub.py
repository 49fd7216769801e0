"""A server on this machine that speaks the part of Hugging Face's API that a download needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories, and what is wrong with the next downloads."""

    def __init__(self) -> None:
        self.url = ""
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.sha256: dict[str, str] = {}  # of a file's name, where the hub says another one than the file's
        self.cuts: list[int] = []  # bytes after which the next answers break off, one after the other
        self.failures: list[int] = []  # statuses of the next downloads
        self.ignores_ranges = False
        self.starts: list[int] = []  # the first byte that each download asked for
        self.tokens: list[str | None] = []  # that came to where the bytes are
        self.is_sending = threading.Event()  # a cut came: the connection stays open and says nothing more
        self.stalls = False
        self.may_end = threading.Event()

    @contextmanager
    def running(self) -> Iterator[FakeHub]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield self
            finally:
                self.may_end.set()
                server.shutdown()
                thread.join()

    def _answer(self, http: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(http.path).path)
        if match := re.fullmatch(r"/api/models/(.+)", path):
            self._describe(http, match[1])
        elif match := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path):
            if match[1] in self.gated:
                self._refuse(http, 403, "GatedRepo")
            else:
                http.send_response(302)
                http.send_header("Location", f"/cdn/{match[1]}/{match[2]}")
                http.send_header("Content-Length", "0")
                http.end_headers()
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._send(http, self.repos[match[1]][match[2]])
        else:
            self._refuse(http, 404, "EntryNotFound")

    def _describe(self, http: BaseHTTPRequestHandler, repo: str) -> None:
        if repo not in self.repos:
            self._refuse(http, 401, "RepoNotFound")
            return
        siblings = [self._described(name, data) for name, data in self.repos[repo].items()]
        body = json.dumps({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": []}).encode()
        http.send_response(200)
        http.send_header("Content-Type", "application/json")
        http.send_header("Content-Length", str(len(body)))
        http.end_headers()
        http.wfile.write(body)

    def _described(self, name: str, data: bytes) -> dict[str, object]:
        """JSON is kept in git itself, everything else beside it."""
        if name.endswith(".json"):
            blob_id = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
            return {"rfilename": name, "size": len(data), "blobId": blob_id}
        sha256 = self.sha256.get(name, hashlib.sha256(data).hexdigest())
        lfs = {"sha256": sha256, "size": len(data), "pointerSize": 134}
        return {"rfilename": name, "size": len(data), "blobId": "0" * 40, "lfs": lfs}

    def _refuse(self, http: BaseHTTPRequestHandler, status: int, code: str) -> None:
        http.send_response(status)
        http.send_header("X-Error-Code", code)
        http.send_header("X-Error-Message", code)
        http.send_header("Content-Length", "0")
        http.end_headers()

    def _send(self, http: BaseHTTPRequestHandler, data: bytes) -> None:
        start = int((http.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.starts.append(start)
        self.tokens.append(http.headers.get("Authorization"))
        if self.failures:
            self._refuse(http, self.failures.pop(0), "Trouble")
            return
        if self.ignores_ranges:
            http.send_response(200)
            start = 0
        else:
            http.send_response(206)
            http.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        http.send_header("Content-Length", str(len(data) - start))
        http.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        http.wfile.write(data[start:] if cut is None else data[start : start + cut])
        if cut is not None:
            http.wfile.flush()
            self.is_sending.set()
            if self.stalls:
                self.may_end.wait()
            http.close_connection = True
