"""The status page is for everybody: axe-core finds nothing in it, light or dark, large or small, busy or idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.blackbox.browsing import someone_asks
from tests.daemon import Daemon
from tests.streaming import document, exactly

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def axe(js_scripts: Path) -> str:
    return (js_scripts / "node_modules" / "axe-core" / "axe.min.js").read_text()


def violations(page: Page, axe: str) -> object:
    """Each rule that is broken, and by what."""
    page.evaluate(axe)
    return page.evaluate(
        "async () => (await axe.run()).violations.map(({id, nodes}) => [id, nodes.map((node) => node.html)])"
    )


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    daemon: Daemon, open_page: Callable[..., Page], axe: str, scheme: str, options: dict[str, object]
) -> None:
    page = open_page(daemon.url, color_scheme=scheme, **options)
    with someone_asks(daemon, "kitchen", exactly(1, document(100))):
        pass
    with someone_asks(daemon, "tablet", exactly(3000)), someone_asks(daemon, "desk", exactly(3000)):
        expect(page.locator(".request")).to_have_count(2)
        page.locator(".past summary").first.click()
        page.locator("#controls").evaluate("(element) => { element.open = true; }")
        assert violations(page, axe) == []


def test_axe_finds_nothing_where_the_owner_is_asked_for_a_key(
    daemon: Daemon, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page(daemon.url)
    page.route("**/api/admin/*", lambda route: route.fulfill(status=403, json={"error": {"message": "no"}}))
    page.get_by_role("button", name="Keep loaded").click()
    expect(page.locator("#admin")).to_be_visible()
    assert violations(page, axe) == []


def test_all_that_can_be_done_can_be_done_by_keyboard(daemon: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(daemon.url)
    reached: list[str] = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    for name in ("Load", "Unload", "Keep loaded", "Lend", "yield-for", "Pause voice"):
        assert name in reached


def test_nothing_moves_for_those_who_want_that(daemon: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(daemon.url, reduced_motion="reduce")
    still = "getComputedStyle(document.querySelector('#kv-bar')).transitionDuration"
    assert page.evaluate(still) == "0s"
    moving = open_page(daemon.url, reduced_motion="no-preference")
    assert moving.evaluate(still) != "0s"
