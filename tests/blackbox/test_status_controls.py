"""Keys on the status page: one to look, and an admin's for the controls; never past one that will not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.daemon import Daemon


@pytest.fixture(scope="module")
def locked(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon.start(model_path, tmp_path_factory.mktemp("locked"), "server.auth=keys") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def reader_key(locked: Daemon) -> str:
    return locked.keys("add", "reader")


@pytest.fixture(scope="module")
def admin_key(locked: Daemon) -> str:
    return locked.keys("add", "owner", "--admin")


def test_page_of_a_locked_daemon_asks_for_a_key(locked: Daemon, browser: Browser, reader_key: str) -> None:
    page = browser.new_page()
    page.goto(locked.url)
    expect(page.locator("#state")).to_have_text("Key needed")
    page.locator("#key").fill("hai_wrong")
    page.locator("#key-form button").click()
    expect(page.locator("#headline")).to_have_text("This key is not accepted.")
    page.locator("#key").fill(reader_key)
    page.locator("#key-form button").click()
    expect(page.locator("#state")).to_have_text("Resident")
    expect(page.locator("#key-form")).to_be_hidden()
    page.close()


@pytest.fixture
def page(browser: Browser, locked: Daemon, reader_key: str) -> Iterator[Page]:
    """Of somebody who may look. No key ever stands in an address."""
    page = browser.new_page()
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(locked.url)
    page.locator("#key").fill(reader_key)
    page.locator("#key-form button").click()
    expect(page.locator("#connection")).to_have_text("Live")
    yield page
    assert not any("hai_" in url for url in [*urls, page.url])
    page.close()


def test_only_an_admin_s_key_will_do_and_the_tab_remembers_it(page: Page, reader_key: str, admin_key: str) -> None:
    page.get_by_role("button", name="Pause background").click()
    dialog, key, said = page.locator("#admin"), page.locator("#admin-key"), page.locator("#admin-said")
    expect(dialog).to_be_visible()
    expect(key).to_be_focused()
    expect(said).to_be_empty()
    for wrong, words in (("hai_wrong", "This key is not accepted."), (reader_key, "This key is not an admin’s.")):
        key.fill(wrong)
        page.keyboard.press("Enter")
        expect(said).to_have_text(words)
        expect(key).to_be_empty()
    expect(page.locator("#notes")).to_be_hidden()
    key.fill(admin_key)
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator("#notes")).to_contain_text("background is paused")
    page.get_by_role("button", name="Resume background").click()
    expect(page.locator("#notes")).to_be_hidden()
    assert page.evaluate("Object.values(sessionStorage)") == [admin_key]
    assert page.evaluate("Object.values(localStorage)") == [reader_key]


def test_nothing_is_done_when_the_owner_turns_away(page: Page) -> None:
    page.get_by_role("button", name="Unload").click()
    expect(page.locator("#admin")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#admin")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("Resident")


def test_owner_lends_the_device_and_takes_it_back(daemon: Daemon, open_page: Callable[..., Page]) -> None:
    """On the machine itself nobody asks for a key."""
    page = open_page(daemon.url)
    page.locator("#yield-for").select_option("for 2 h")
    page.get_by_role("button", name="Lend").click()
    expect(page.locator("#state")).to_have_text("Lent")
    expect(page.locator("#control-said")).to_have_text("The device is lent to other programs.")
    expect(page.locator("#events")).to_contain_text("The owner said: yield for 7200 s")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator("#state")).to_have_text("Resident")
