"""Regular expressions from the settings, in RE2's syntax: it needs time in proportion to the text, whatever the
pattern, where Python's own may need more than a life."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import re2


class Match(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...
    def group(self) -> str: ...


class Pattern(Protocol):
    def search(self, text: str) -> Match | None: ...
    def finditer(self, text: str, pos: int, endpos: int) -> Iterator[Match]: ...


def compiled(pattern: str) -> Pattern:
    """Raises ValueError for what is not a pattern, or one that finds something in an empty text."""
    options = re2.Options()
    options.log_errors = False
    try:
        regexp = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"not a pattern: {error}") from None
    if regexp.search("") is not None:
        raise ValueError("it finds something in an empty text")
    found: Pattern = regexp
    return found
