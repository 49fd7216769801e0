"""Patterns of the settings take time in proportion to the text, and never find nothing."""

from __future__ import annotations

import pytest

from homeai.patterns import compiled


def found(pattern: str, text: str) -> list[str]:
    return [match.group() for match in compiled(pattern).finditer(text, 0, len(text))]


def test_every_match_is_found_where_it_stands() -> None:
    text = "Küche 12:34, Bad 07:00"
    (first, second) = compiled("[0-9]+:[0-9]+").finditer(text, 0, len(text))
    assert (text[first.start() : first.end()], second.group()) == ("12:34", "07:00")


def test_what_would_take_forever_elsewhere_ends() -> None:
    """2^40 ways to divide the text, for an engine that goes back."""
    assert found("(a+)+b", "a" * 40) == []
    assert found("(?:a|a)*b", "a" * 60_000) == []


@pytest.mark.parametrize(("pattern", "why"), [("(", "missing"), ("(?=a)", "perl operator"), ("a*", "empty text")])
def test_what_cannot_be_used_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compiled(pattern)
