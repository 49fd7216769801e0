"""What the tests of the status page share: how Chromium starts, somebody who asks, a page that is watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from tests.daemon import Daemon
from tests.streaming import COMPLETIONS

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
]
PATIENCE_MS = 60_000


@contextmanager
def someone_asks(daemon: Daemon, source: str, body: dict[str, object]) -> Iterator[None]:
    """A streaming request is live from its first token on until the block ends."""
    with daemon.client() as client:
        headers = {"X-HomeAI-Source": source}
        with client.stream("POST", COMPLETIONS, json=body | {"stream": True}, headers=headers) as answer:
            assert answer.is_success
            yield


@contextmanager
def watched(daemon: Daemon, browser: Browser) -> Iterator[Page]:
    """A page that complains of nothing, and asks nobody but the daemon."""
    complaints: list[str] = []
    hosts: set[str] = set()

    def note_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def note_request(request: Request) -> None:
        if not request.url.startswith("data:"):
            hosts.add(httpx.URL(request.url).netloc.decode())

    page = browser.new_page()
    page.on("console", note_message)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", note_request)
    yield page
    page.close()
    assert complaints == []
    assert hosts == {httpx.URL(daemon.url).netloc.decode()}
