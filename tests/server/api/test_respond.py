"""What goes out beside an answer."""

from __future__ import annotations

from starlette.responses import Response

from homeai.server.api.respond import MAX_NOTES_LENGTH, noted
from homeai.server.arrival import Arrival, Caller
from homeai.server.sources import Identity


def header(*notes: str) -> str | None:
    arrival = Arrival("/x", Caller(None, None, None), None, Identity("anna", "voice"), notes=[*notes])
    return noted(Response(), arrival).headers.get("x-homeai-notes")


def test_notes_are_one_header_each_said_once() -> None:
    assert header() is None
    assert header("a has no effect", "b has no effect", "a has no effect") == "a has no effect; b has no effect"


def test_very_many_notes_are_cut() -> None:
    """Proxies refuse long headers."""
    text = header(*(f"tool {index} was skipped" for index in range(4000)))
    assert text is not None
    assert len(text) == MAX_NOTES_LENGTH
    assert text.endswith("...")


def test_no_note_ends_the_header() -> None:
    assert header("model 'щ\r\nX: y'") == "model '???X: y'"
