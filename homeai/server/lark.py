"""Rules of a Lark grammar, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from llguidance import regex_to_lark

from homeai.server.schema_reader import Node
from homeai.server.schemas import grammar_json

MarkerId = Callable[[str], int | None]
"""The id of a text that is a control token of the vocabulary, None for any other text."""

SPECIAL: Final = re.compile(r"[^\w\s]")  # what may mean something in a regular expression
MAIN, OWN = "main", "own"


class Rules:
    """Rules by name. `markers` are the control tokens among the texts: what they are called does not spell them."""

    def __init__(self, markers: Mapping[str, int]) -> None:
        self._markers = markers
        longest_first = sorted(markers, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._rules: dict[str, str] = {}
        self._included: str | None = None

    def source(self, start: str) -> str:
        """The whole grammar, as the engine takes it."""
        rules = {"start": start} | self._rules
        lark = "".join(f"{name}: {body}\n" for name, body in rules.items())
        if self._included is None:
            return lark
        grammars = [{"name": MAIN, "lark_grammar": lark}, {"name": OWN, "lark_grammar": self._included}]
        return json.dumps({"grammars": grammars})

    def add(self, name: str, body: str) -> str:
        self._rules[name] = body or '""'
        return name

    def new(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules[name + options] = body or '""'
        return name

    def include(self, lark: str) -> str:
        """A whole grammar that somebody else wrote; one at most."""
        self._included = lark
        return f"@{OWN}"

    def text(self, text: str) -> str:
        """Exactly this text; its control tokens by their ids."""
        parts, end = [], 0
        for found in self._marker.finditer(text):
            parts += [_quoted(text[end : found.start()]), f"<[{self._markers[found[0]]}]>"]
            end = found.end()
        return " ".join(filter(None, [*parts, _quoted(text[end:])]))

    def until(self, end: str) -> str:
        """Any text, up to and with the first `end`."""
        if (number := self._markers.get(end)) is not None:
            return f"/(?s:.*)/ <[{number}]>"
        return self.new(f"/(?s:.*){SPECIAL.sub(_escaped, end)}/", "[lazy]")

    def pattern(self, pattern: str) -> str:
        """Any text in which this regular expression of a JSON schema is found."""
        start = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        body = pattern.removeprefix("^").removesuffix("$") if not end else pattern.removeprefix("^")
        return f"/{start}({regex_to_lark(body, 'dw')}){end}/"

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def json(self, schema: Node | bool) -> str:
        return self.new(f"%json {grammar_json(schema)}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):x}}}"
