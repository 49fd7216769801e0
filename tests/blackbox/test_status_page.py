"""The status page in a real browser: it shows what is, live, on any screen, and finds the daemon again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from homeai.backends.llamacpp.binding import supports_gpu
from tests.blackbox.browsing import someone_asks, watched
from tests.daemon import Daemon, eventually, free_port
from tests.streaming import COMPLETIONS, document, exactly


def test_page_loads_cleanly_and_from_nowhere_else(daemon: Daemon, browser: Browser) -> None:
    with watched(daemon, browser) as page:
        page.goto(daemon.url)
        expect(page.locator("#state")).to_have_text("Resident")
        with someone_asks(daemon, "visitor", exactly(3000)):
            expect(page.locator(".request")).to_have_count(1)


def test_api_is_documented_without_the_internet(daemon: Daemon, browser: Browser) -> None:
    with watched(daemon, browser) as page:
        page.goto(f"{daemon.url}/docs")
        chat = page.locator(".opblock-summary-path", has_text="/v1/chat/completions")
        expect(chat.first).to_be_visible()
        expect(page.locator(".errors-wrapper")).to_have_count(0)


@pytest.fixture(scope="module")
def known_daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """It knows some of those who ask."""
    return start_daemon(
        "sources=[{name: automation, class: interactive, show_text: true},"
        " {name: desk, class: coding, match: {key: [laptop], user_agent: ['^n8n']}}]"
    )


def test_page_says_who_is_who(known_daemon: Daemon, open_page: Callable[..., Page]) -> None:
    rules = open_page(known_daemon.url).locator("#rules > div")
    expect(rules).to_have_text(
        ["Key laptopdesk (coding)", "Program ^n8ndesk (coding)", "Anybody else default (interactive)"]
    )


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """Where the pages of other hosts are served."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_page_of_another_host_asks_when_it_is_listed(
    start_daemon: Callable[..., Daemon], browser: Browser, foreign_port: int
) -> None:
    """A browser asks for permission first, and reads what it is told about the answer."""
    daemon = start_daemon(f"server.cors_origins=['http://chat.example:{foreign_port}']")
    ask = """async (url) => {
        const headers = {"content-type": "application/json", authorization: "Bearer x", "x-stainless-lang": "js"};
        const body = JSON.stringify({prompt: "a", max_tokens: 1});
        const answer = await fetch(url, {method: "POST", headers, body}).catch(() => null);
        return answer && [answer.status, answer.headers.get("x-request-id") !== null];
    }"""

    def answer_to(host: str) -> object:
        page = browser.new_page()
        page.goto(f"http://{host}:{foreign_port}/")
        answer = page.evaluate(ask, daemon.url + COMPLETIONS)
        page.close()
        return answer

    assert answer_to("chat.example") == [200, True]
    assert answer_to("evil.example") is None
    assert answer_to("localhost") == [200, True]


def test_page_shows_model_and_state(daemon: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(daemon.url)
    status = daemon.status()
    expect(page).to_have_title("Resident · homeai")
    expect(page.locator("#state")).to_have_text("Resident")
    expect(page.locator("#version")).to_have_text(status["version"])
    expect(page.locator("#model-name")).to_have_text(status["model"]["name"])
    expect(page.locator("#model-file")).to_have_text(status["model"]["file"])
    expect(page.locator("#model-device")).to_have_text(status["model"]["device"], ignore_case=True)
    expect(page.locator("#policy-mode")).to_contain_text(status["batch"]["mode"])
    expect(page.locator("#classes tr")).to_have_count(len(status["classes"]))


def test_request_appears_while_it_is_live_and_goes_with_it(daemon: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(daemon.url)
    row = page.locator(".request", has_text="wall-tablet")
    expect(page.locator("#requests-empty")).to_be_visible()
    with someone_asks(daemon, "wall-tablet", exactly(3000)):
        expect(row.locator('[data-field="source"]')).to_have_text("wall-tablet")
        expect(row.locator('[data-field="doing"]')).to_have_text("Writing")
        expect(page.locator(".group h3")).to_have_text(["interactive"])
        expect(page.locator("#seats-used")).to_have_text("1")
        written = row.locator('[data-field="answer"]')
        before = written.inner_text()
        expect(written).not_to_have_text(before)
    expect(row).to_have_count(0)
    expect(page.locator("#requests-empty")).to_be_visible()
    expect(page.locator("#seats-used")).to_have_text("0")


def test_text_is_shown_as_it_is_written_for_sources_that_want_it(
    known_daemon: Daemon, open_page: Callable[..., Page]
) -> None:
    daemon = known_daemon
    page = open_page(daemon.url)
    with someone_asks(daemon, "automation", exactly(3000)), someone_asks(daemon, "phone", exactly(3000)):
        said = page.locator(".request", has_text="automation").locator('[data-field="text"]')
        expect(said).to_be_visible()
        before = said.inner_text()
        expect(said).not_to_have_text(before)
        expect(page.locator(".request", has_text="phone").locator('[data-field="text"]')).to_be_hidden()


def test_waiting_request_says_why_it_waits(start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]) -> None:
    daemon = start_daemon("scheduler.max_num_seqs=1")
    page = open_page(daemon.url)
    with someone_asks(daemon, "talker", exactly(5000)):
        body, headers = exactly(1, document(50)), {"X-HomeAI-Source": "waiter"}
        waiter = threading.Thread(target=lambda: httpx.post(daemon.url + COMPLETIONS, json=body, headers=headers))
        waiter.start()
        row = page.locator(".request", has_text="waiter")
        expect(row.locator('[data-field="doing"]')).to_have_text("Waits for a seat, all 1 are taken")
        expect(row.locator('[data-field="prompt"]')).to_have_text("0 / 50 read")
    waiter.join()
    expect(page.locator("#total-finished")).to_have_text("2")


@pytest.mark.parametrize("width", [320, 360, 768])
def test_narrow_screen_needs_no_sideways_scrolling(daemon: Daemon, open_page: Callable[..., Page], width: int) -> None:
    page = open_page(daemon.url, viewport={"width": width, "height": 740}, is_mobile=True, has_touch=True)
    with someone_asks(daemon, "a-source-with-quite-a-long-name-as-they-come-in-real-homes-" + "x" * 5, exactly(3000)):
        expect(page.locator(".request")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_page_shows_how_far_batches_are(start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]) -> None:
    daemon = start_daemon()
    page = open_page(daemon.url)
    expect(page.locator("#batches-empty")).to_contain_text("homeai batch")
    httpx.post(f"{daemon.url}/api/admin/pause", json={"class": "background"}).raise_for_status()
    line = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}'
    form = {"files": {"file": ("a.jsonl", line.encode())}, "data": {"purpose": "batch"}}
    file = httpx.post(f"{daemon.url}/v1/files", **form).raise_for_status().json()
    order = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    headers = {"X-HomeAI-Source": "night"}
    httpx.post(f"{daemon.url}/v1/batches", json=order, headers=headers).raise_for_status()
    expect(page.locator("#batches dt")).to_have_text("night")
    expect(page.locator("#batches dd")).to_have_text("0 of 1 done")
    httpx.post(f"{daemon.url}/api/admin/resume", json={"class": "background"}).raise_for_status()
    expect(page.locator("#batches-empty")).to_be_visible()


def test_page_shows_what_is_pinned_kept_and_worth_knowing(
    start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]
) -> None:
    house = f"{{name: {'a-long-name-' * 5}, prompt: '{'lamp ' * 99}'}}"
    daemon = start_daemon(f"pins=[{house}, {{name: short, prompt: Hello}}]")
    page = open_page(daemon.url, viewport={"width": 320, "height": 740}, is_mobile=True)
    (num_tokens, _) = [pin["num_tokens"] for pin in daemon.status()["pins"]]
    expect(page.locator("#pins dd")).to_have_text([f"{num_tokens} tokens", "1 tokens, left out"])
    expect(page.locator("#notes li")).to_have_text(["pin 'short' is left out: it is too short: 1 tokens < 32 minimum"])
    expect(page.locator("#kv-used")).to_have_text(str(num_tokens))
    httpx.post(daemon.url + COMPLETIONS, json=exactly(2, document(200)), timeout=120).raise_for_status()
    expect(page.locator("#kv-note")).to_contain_text("more kept for reuse")
    expect(page.locator("#kv-used")).to_have_text(str(num_tokens))
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_dark_looks_different_from_light_and_both_are_readable(daemon: Daemon, open_page: Callable[..., Page]) -> None:
    def colours(scheme: str) -> tuple[int, int]:
        """How light ground and text are, 0 to 765."""
        page = open_page(daemon.url, color_scheme=scheme)
        style = (
            "(() => { const s = getComputedStyle(document.documentElement); return [s.backgroundColor, s.color] })()"
        )
        ground, text = page.evaluate(style)
        return lightness(page, ground), lightness(page, text)

    light, dark = colours("light"), colours("dark")
    assert light[0] - light[1] > 380
    assert dark[1] - dark[0] > 380


def lightness(page: Page, colour: str) -> int:
    """Any CSS colour, as the browser paints it."""
    return sum(
        page.evaluate(
            """colour => {
                const canvas = document.createElement("canvas").getContext("2d");
                canvas.fillStyle = colour;
                canvas.fillRect(0, 0, 1, 1);
                return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
            }""",
            colour,
        )
    )


def test_page_finds_the_daemon_again(model_path: Path, tmp_path: Path, open_page: Callable[..., Page]) -> None:
    port = free_port()
    with Daemon.start(model_path, tmp_path, port=port) as daemon:
        page = open_page(daemon.url)
        expect(page.locator("#state")).to_have_text("Resident")
    expect(page.locator("#connection")).to_have_text("Disconnected")
    expect(page.locator("#stale")).to_be_visible()
    with Daemon.start(model_path, tmp_path, port=port):
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#state")).to_have_text("Resident")
        expect(page.locator("#stale")).to_be_hidden()


# ---- away ----------------------------------------------------------------------------------------------


def test_page_says_that_the_model_is_lent_or_asleep_and_why(
    start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]
) -> None:
    daemon = start_daemon()
    page = open_page(daemon.url)
    httpx.post(f"{daemon.url}/api/admin/yield")
    expect(page.locator("#state")).to_have_text("Lent")
    expect(page.locator("#headline")).to_contain_text("The owner gave the device to other programs")
    httpx.post(f"{daemon.url}/api/admin/unload")
    expect(page.locator("#state")).to_have_text("Asleep")
    httpx.post(f"{daemon.url}/api/admin/pause", json={"class": "background"})
    expect(page.locator("#notes")).to_contain_text("background is paused")


@pytest.mark.skipif(supports_gpu(), reason="this machine has a GPU")
def test_page_is_red_while_the_gpu_is_gone(model_path: Path, tmp_path: Path, open_page: Callable[..., Page]) -> None:
    with Daemon.launch(model_path, tmp_path, "model.device=cuda", port=free_port()) as daemon:
        eventually(lambda: any("the device is unavailable" in line for line in daemon.log))
        page = open_page(daemon.url)
        expect(page.locator("#headline")).to_contain_text("no GPU")
        expect(page.locator("html")).to_have_attribute("data-state", "failed")
