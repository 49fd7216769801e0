"""What the status page tells of what was: where time went, how fast and how fair it is, what happened to the model."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.blackbox.browsing import someone_asks
from tests.daemon import Daemon, eventually
from tests.streaming import COMPLETIONS, document, exactly


@pytest.fixture(scope="module")
def busy(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Where the tablet had to wait for the desk, and the owner came by."""
    settings = "scheduler.max_num_seqs=1", "sources=[{name: desk, class: coding}]"
    with Daemon.start(model_path, tmp_path_factory.mktemp("busy"), *settings) as daemon:
        httpx.post(f"{daemon.url}/api/admin/pin").raise_for_status()
        body, headers = exactly(40, document(200)), {"X-HomeAI-Source": "tablet"}
        tablet = threading.Thread(target=lambda: httpx.post(daemon.url + COMPLETIONS, json=body, headers=headers))
        with someone_asks(daemon, "desk", exactly(5000)):
            tablet.start()
            eventually(lambda: (daemon.live("tablet") or {}).get("wait_reason"))
        tablet.join()
        eventually(lambda: len(daemon.status()["recent"]) == 2)
        yield daemon


def test_ended_request_says_where_its_time_went_and_who_was_in_the_way(
    busy: Daemon, open_page: Callable[..., Page]
) -> None:
    page = open_page(busy.url)
    row = row_of(page, "tablet")
    expect(row.locator('[data-field="took"]')).to_contain_text("s")
    expect(row.locator(".why")).to_be_hidden()
    row.locator("summary").focus()
    page.keyboard.press("Enter")
    why = row.locator(".why li")
    expect(why.nth(0)).to_contain_text("for a seat, all 1 are taken.")
    expect(why.nth(1)).to_contain_text("Read its prompt of 200 tokens in")
    expect(why.nth(2)).to_contain_text("Wrote 40 tokens in")
    expect(why.nth(3)).to_contain_text("While it waited ran desk (coding")
    left = row_of(page, "desk")
    expect(left.locator('[data-field="mostly"]')).to_have_text("not complete")


def test_page_tells_how_fast_and_how_fair_it_was(busy: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(busy.url)
    coding = page.locator(".pace", has_text="coding")
    expect(coding.locator('[data-field="ttft"]')).to_contain_text("p95")
    expect(
        coding.locator('[data-field="itl-spark"] path.bars, [data-field="itl-spark"] path.late').first
    ).to_be_attached()
    shares = page.locator(".share")
    expect(shares).to_have_count(2)
    expect(page.locator(".share", has_text="desk").locator(".note")).to_contain_text("due 33 %")


def test_timeline_and_events_tell_what_happened_to_the_model(busy: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(busy.url)
    expect(page.locator("#timeline")).to_have_attribute("aria-label", timeline_of("Resident", "Loading"))
    expect(page.locator("#events")).to_contain_text("The owner said: pin")
    expect(page.locator("#events")).to_contain_text("Resident: ")


def test_engine_that_dies_is_an_event(busy: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(busy.url)
    (engine,) = busy.engines
    engine.kill()
    expect(page.locator("#events")).to_contain_text("The engine died, and came back: ")
    expect(page.locator("#state")).to_have_text("Resident")


def row_of(page: Page, source: str) -> Locator:
    return page.locator(".past", has=page.locator('[data-field="past-source"]', has_text=source))


def timeline_of(*states: str) -> re.Pattern[str]:
    """Its words."""
    return re.compile("Since .*" + ".*".join(f"{state} \\d+ %" for state in states))


def test_map_of_the_memory_names_all_that_is_in_it(busy: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(busy.url)
    expect(page.locator("#memory-where")).to_contain_text("RAM")
    for words in ("Weights", "Context (KV)", "Other programs", "Free"):
        expect(page.locator("#memory-parts")).to_contain_text(words)
    with someone_asks(busy, "desk", exactly(3000, document(400))):
        expect(page.locator("#context-parts dt", has_text="desk")).to_be_visible()
        expect(page.locator("#seats li").first).to_have_text("writes")
