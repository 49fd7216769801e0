"""Reading a text that is not all there yet."""

from __future__ import annotations

import json
import re
from typing import Final

from homeai.server.families.syntax import ANY

_PIECES: Final = re.compile(rf"\s+|[0-9]+|{ANY}|[^\s0-9{ANY}]+")
_SPACE: Final = re.compile(r"\s*")
_DIGITS: Final = re.compile(r"[0-9]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SCALAR: Final = re.compile(r"[^\s,:{}\[\]\"]*")


class Mismatch(Exception):
    """The text is not what was looked for, whatever comes next."""


class Unfinished(Exception):
    """The text may become what was looked for."""


class Cursor:
    """A place in `text`. What it reads it moves past, or raises `Mismatch` or `Unfinished`."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at

    def space(self) -> None:
        self._move(_SPACE)

    def peek(self) -> str:
        """The next character. Raises `Unfinished` at the end."""
        if self.at == len(self.text):
            raise Unfinished
        return self.text[self.at]

    def exactly(self, wanted: str) -> None:
        if not self.text.startswith(wanted, self.at):
            rest = self.text[self.at : self.at + len(wanted)]
            raise Unfinished if wanted.startswith(rest) else Mismatch
        self.at += len(wanted)

    def literal(self, wanted: str) -> None:
        """`wanted`, give or take white space where it has some; a number stands for any, `ANY` for any text."""
        pieces = _PIECES.findall(wanted)
        for index, piece in enumerate(pieces):
            if piece.isspace():
                self.space()
            elif piece.isdigit():
                self._move(_DIGITS)
            elif piece == ANY:
                self.until(pieces[index + 1])
            else:
                self.exactly(piece)

    def string(self) -> str:
        """A JSON string, decoded."""
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise Unfinished if self.peek() == '"' else Mismatch
        self.at = match.end()
        try:
            return str(json.loads(match.group(), strict=False))
        except ValueError:
            raise Mismatch from None

    def value(self) -> str:
        """Any JSON value, as it is written; what stands in its brackets is not looked at."""
        start = self.at
        if self.peek() == '"':
            self.string()
        elif self.peek() in "{[":
            self.at = end_of_brackets(self.text, self.at)
        else:
            self._move(_SCALAR)
            self.peek()
        return self.text[start : self.at]

    def until(self, wanted: str) -> str:
        """What stands before `wanted`."""
        start, found = self.at, self.text.find(wanted, self.at)
        if found < 0:
            raise Unfinished
        self.at = found
        return self.text[start:found]

    def _move(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        assert match is not None, "the pattern matches nothing, too"
        self.at = match.end()


class Brackets:
    """Finds the end of a JSON value in brackets, piece by piece.

    `breaks` are the places in the last piece where a control character stands in a string, which JSON does not allow.
    """

    _OUTSIDE: Final = re.compile(r'["{}\[\]]')
    _INSIDE: Final = re.compile(r'["\\\x00-\x1f]')

    def __init__(self, depth: int = 0) -> None:
        self.breaks: list[int] = []
        self._depth = depth
        self._is_in_string = False
        self._is_escaped = False

    def end(self, text: str, start: int = 0) -> int | None:
        """Where in `text` the value ends, None while it goes on after it."""
        at = start
        self.breaks = []
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            match = (self._INSIDE if self._is_in_string else self._OUTSIDE).search(text, at)
            if match is None:
                return None
            at = match.end()
            self._take(match.group(), at - 1)
            if self._depth == 0:
                return at
        return None

    def _take(self, symbol: str, place: int) -> None:
        if symbol == '"':
            self._is_in_string = not self._is_in_string
        elif symbol == "\\":
            self._is_escaped = True
        elif symbol in "{[":
            self._depth += 1
        elif symbol in "}]":
            self._depth -= 1
        else:
            self.breaks.append(place)


def end_of_brackets(text: str, start: int, depth: int = 0) -> int:
    """Raises `Unfinished`."""
    end = Brackets(depth).end(text, start)
    if end is None:
        raise Unfinished
    return end


def held_length(text: str, *markers: str) -> int:
    """How many characters at the end of `text` may be the beginning of one of `markers`."""
    longest = max(map(len, markers), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0
