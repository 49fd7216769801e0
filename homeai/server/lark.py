"""Rules of a Lark grammar, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from llguidance import regex_to_lark

from homeai.server.schema_reader import Node
from homeai.server.schemas import grammar_json

MarkerId = Callable[[str], int | None]
"""The id of a text that is a control token of the vocabulary, None for any other text."""

SPECIAL: Final = re.compile(r"[^\w\s]")  # what may mean something in a regular expression
ANCHOR: Final = re.compile(r"[\^$]")
NO_ANCHOR: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # escaped, or in a class
MAIN, OWN = "main", "own"


class Rules:
    """Rules by name. `markers` are the control tokens among the texts: what they are called does not spell them."""

    def __init__(self, markers: Mapping[str, int]) -> None:
        self._markers = markers
        longest_first = sorted(markers, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._rules: dict[str, str] = {}
        self._terminals: dict[str, str] = {}
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
        return self.new(f"/(?s:.*){_literally(end)}/", "[lazy]")

    def text_until(
        self, end: str, wanted: Sequence[str], unwanted: Sequence[str], length: tuple[int, int | None] = (0, None)
    ) -> str:
        """A text that is all of these regular expressions and none of those, up to and with `end`, whose mark (what
        stands in it between white space) the text does not hold, even where the vocabulary has a token for it.

        One terminal: the lexer takes the longest, and never goes back. Where characters are counted (`length`: the
        least and the most) and the end is text, too, not even the mark's first character may stand in it: the engine
        gives up on the mark's beginnings at every count.
        """
        mark, found = _literally(end.strip()), self._marker.search(end)
        plain = end[: found.start()] if found else end
        after = _literally(plain)
        once = f"(?s:.*){mark}" * (2 if plain.strip() else 1) + "(?s:.*)"
        least, most = length
        if length != (0, None):
            any_character = f"[^{_literally(end.strip()[0])}]" if plain.strip() else "(?s:.)"
            wanted = [*wanted, f"{any_character}{{{least},{'' if most is None else most}}}"]
        are = [f"/({each}){after}/" for each in wanted or ["(?s:.*)"]]
        is_free = length == (0, None) or not plain.strip()
        are_not = [*([f"~/{once}/"] if is_free else []), *(f"~/({each}){after}/" for each in unwanted)]
        return f"{self._terminal([*are, *are_not])} {self.text(end[len(plain) :])}"

    def name(
        self,
        before: str,
        pattern: str,
        after: str,
        *,
        listed: Sequence[str] = (),
        wanted: Sequence[str] = (),
        unwanted: Sequence[str] = (),
    ) -> str:
        """A name between two texts, none of the listed ones."""
        start, end = _literally(before), _literally(after)
        are = [f"/{start}({each}){end}/" for each in (pattern, *wanted)]
        none_of = [*unwanted, *(["|".join(map(_literally, listed))] if listed else [])]
        return self._terminal([*are, *(f"~/{start}({each}){end}/" for each in none_of)])

    def _terminal(self, parts: Sequence[str]) -> str:
        body = " & ".join(parts)
        if body not in self._terminals:
            self._terminals[body] = self.add(f"T{len(self._terminals)}", body)
        return self._terminals[body]

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def json(self, schema: Node | bool) -> str:
        return self.new(f"%json {grammar_json(schema)}")


def text_of_pattern(pattern: str) -> str | None:
    """For whole texts in which this pattern of a JSON schema is found; None where it has ^ or $ inside."""
    texts = []
    for way in _ways(pattern):
        start, end = ("" if way.startswith("^") else "(?s:.*)"), ("" if _ends_text(way) else "(?s:.*)")
        body = way.removeprefix("^")
        body = body if end else body[:-1]
        if ANCHOR.search(NO_ANCHOR.sub("", body)):
            return None
        texts.append(f"{start}({regex_to_lark(body, 'dw')}){end}")
    return "|".join(texts)


def _ways(pattern: str) -> list[str]:
    """The alternatives that it is at the top."""
    ways, depth, start, at = [], 0, 0, 0
    while at < len(pattern):
        found = NO_ANCHOR.match(pattern, at)
        if found is not None:
            at = found.end()
            continue
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        if pattern[at] == "|" and depth == 0:
            ways.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*ways, pattern[start:]]


def _ends_text(pattern: str) -> bool:
    return NO_ANCHOR.sub("", pattern).endswith("$")


def _literally(text: str) -> str:
    return SPECIAL.sub(_escaped, text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):x}}}"
