"""The status page needs nothing but itself: no network, no inline code, no markup made from data."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import homeai
from homeai.request import WaitReason
from homeai.server.supervisor import State

STATIC = Path(homeai.__file__).parent / "server" / "static"
MAX_BYTES = 100_000

HTML = (STATIC / "index.html").read_text()
MODULES = sorted(path.name for path in STATIC.glob("*.js") if path.name != "docs.js")
JS = "\n".join((STATIC / name).read_text() for name in MODULES)
CSS = (STATIC / "status.css").read_text()
MEMORY_MAP = (STATIC.parent / "memory_map.py").read_text()


def table(name: str) -> str:
    """The source of a constant object of the scripts."""
    return JS[JS.index(f"const {name} =") : JS.index("};", JS.index(f"const {name} ="))]


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(HTML)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.found if (value := attrs.get(attribute)) is not None]


ELEMENTS = Elements()


def test_page_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) <= MAX_BYTES


@pytest.mark.parametrize("text", [HTML, CSS, JS], ids=["html", "css", "js"])
def test_nothing_comes_from_elsewhere(text: str) -> None:
    assert not re.search(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]|@import|url\(", text, re.IGNORECASE)


def test_every_asset_is_there() -> None:
    assets = ELEMENTS.values("href") + ELEMENTS.values("src")
    assert sorted(assets) == ["static/icon.svg", "static/status.css", "static/status.js"]
    assert all((STATIC / asset.removeprefix("static/")).is_file() for asset in assets)


def test_every_module_that_is_imported_is_there_and_every_one_there_is() -> None:
    imported = set(re.findall(r'^import .* from "\./([^"]+)";$', JS, re.MULTILINE))
    assert imported | {"status.js"} == set(MODULES)


def test_a_strict_content_security_policy_suffices() -> None:
    tags = [tag for tag, _ in ELEMENTS.found]
    attributes = {name for _, attrs in ELEMENTS.found for name in attrs}
    assert "style" not in tags
    assert tags.count("script") == len(ELEMENTS.values("src")) == 1
    assert not any(name == "style" or name.startswith("on") for name in attributes)


def test_data_never_becomes_markup_or_code() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", JS)


def test_every_id_that_the_script_uses_exists_once() -> None:
    ids = ELEMENTS.values("id")
    used = set(re.findall(r'\b(?:byId|put|drawMap)\("([^"]+)"', JS))
    assert len(ids) == len(set(ids))
    assert used
    assert used <= set(ids)


def test_every_field_that_the_script_fills_is_in_a_template() -> None:
    used = set(re.findall(r'field\(\w+, "([^"]+)"\)', JS))
    assert used == set(ELEMENTS.values("data-field"))


def test_every_reason_to_wait_has_plain_words() -> None:
    assert set(re.findall(r"^  (\w+):", table("WAITS"), re.MULTILINE)) == {reason.value for reason in WaitReason}


def test_every_state_has_plain_words() -> None:
    assert set(re.findall(r"^  (\w+):", table("STATES"), re.MULTILINE)) == {state.value for state in State}


def test_every_part_of_the_memory_has_plain_words_and_a_colour() -> None:
    kinds = set(re.findall(r'MemoryPart\(\s*"(\w+)"', MEMORY_MAP))
    assert kinds | {"context"} == set(re.findall(r"(\w+):", table("PARTS")))
    assert kinds <= set(re.findall(r'\[data-part="(\w+)"\]', CSS))


def test_admin_key_is_kept_in_the_tab_alone_and_never_in_an_address() -> None:
    controls = (STATIC / "controls.js").read_text()
    assert "sessionStorage.setItem(ADMIN_KEY" in controls
    assert not re.search(r"localStorage\.setItem|location|[?&]key", controls)


def test_labels_point_at_elements_that_exist() -> None:
    assert set(ELEMENTS.values("aria-labelledby")) <= set(ELEMENTS.values("id"))


def test_state_is_announced_politely() -> None:
    (state,) = [attrs for _, attrs in ELEMENTS.found if attrs.get("id") == "state"]
    assert state["aria-live"] == "polite"
