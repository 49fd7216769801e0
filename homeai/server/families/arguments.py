"""Arguments of a call as a model writes them, turned into JSON text while they come."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple, Protocol

from homeai.server.conversation import Schema, Tool
from homeai.server.families.argument_types import ArgumentTypes, kinds_of, refuse_constant, typed
from homeai.server.families.cursor import Brackets, Cursor, Mismatch, Unfinished, held_length
from homeai.server.families.syntax import CallSyntax

NO_ARGUMENTS: Final = "{}"


class Progress(NamedTuple):
    """What a text adds to the arguments: JSON, and how much of the text that took. What is left comes again."""

    json: str
    end: int
    is_over: bool = False


class Arguments(Protocol):
    def read(self, text: str) -> Progress:
        """`text` is what the last call left over, and what came since."""


def arguments_of(syntax: CallSyntax, tool: Tool) -> Arguments:
    if syntax.arguments == "xml":
        return XmlArguments(syntax, tool.parameters)
    return GemmaArguments(syntax.quote) if syntax.arguments == "gemma" else JsonArguments()


def is_object(text: str) -> bool:
    """Whether it is one whole JSON object, by the letter of the standard."""
    try:
        return isinstance(json.loads(text, parse_constant=refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


class JsonArguments:
    """As they are; but line ends and the like inside strings, which JSON does not allow, are escaped."""

    def __init__(self) -> None:
        self._brackets = Brackets()

    def read(self, text: str) -> Progress:
        end = self._brackets.end(text)
        is_over = end is not None
        end = len(text) if end is None else end
        json_text, start = "", 0
        for place in self._brackets.breaks:
            json_text += text[start:place] + _escaped(text[place])
            start = place + 1
        return Progress(json_text + text[start:end], end, is_over)


class XmlArguments:
    """A block for each argument. Text goes out as it comes, all else when it is whole."""

    def __init__(self, syntax: CallSyntax, parameters: Schema) -> None:
        self._before_key = syntax.before_key
        self._before_value = syntax.before_value.rstrip()
        self._after_value = syntax.after_value.strip()
        self._skips_line_end = syntax.before_value != self._before_value
        self._trims_line_end = syntax.after_value.startswith("\n")
        self._ends = syntax.after_arguments.split()
        self._types = ArgumentTypes(parameters)
        self._value_types: frozenset[str] | None = None  # None: a key is read
        self._is_begun = False

    def read(self, text: str) -> Progress:
        out, at = "", 0
        while True:
            json_text, end, is_over = self._key(text, at) if self._value_types is None else self._value(text, at)
            out += json_text
            if is_over or (end, json_text) == (at, ""):
                return Progress(out, end, is_over)
            at = end

    def _key(self, text: str, at: int) -> Progress:
        cursor = Cursor(text, at)
        try:
            cursor.space()
            cursor.exactly(self._before_key)
            key = cursor.until(self._before_value.split()[0])
            cursor.literal(self._before_value)
            if self._skips_line_end and cursor.peek() == "\n":
                cursor.at += 1
        except Unfinished:
            return Progress("", at)
        except Mismatch:
            return self._end(text, at)
        self._value_types = self._types.of(key)
        begin, self._is_begun = ", " if self._is_begun else "{", True
        return Progress(f"{begin}{json.dumps(key, ensure_ascii=False)}: {'' if self._is_typed else _QUOTE}", cursor.at)

    def _end(self, text: str, at: int) -> Progress:
        """Without one of the texts that end a call the arguments stay open, and so no object."""
        rest = text[at:].lstrip()
        if any(rest.startswith(end) for end in self._ends):
            return Progress("}" if self._is_begun else NO_ARGUMENTS, at, True)
        return Progress("", at, not any(end.startswith(rest) for end in self._ends))

    @property
    def _is_typed(self) -> bool:
        return bool(self._value_types) and self._value_types != frozenset({"string"})

    def _value(self, text: str, at: int) -> Progress:
        found = text.find(self._after_value, at)
        if found < 0 and self._is_typed:
            return Progress("", at)
        if found < 0:
            markers = [self._after_value, "\n" + self._after_value] if self._trims_line_end else [self._after_value]
            end = len(text) - held_length(text[at:], *markers)
            return Progress(_escaped(text[at:end]), end)
        value = text[at:found]
        if self._trims_line_end:
            value = value.removesuffix("\n")
        types, is_typed, self._value_types = self._value_types or frozenset(), self._is_typed, None
        return Progress(typed(value, types) if is_typed else _escaped(value) + _QUOTE, found + len(self._after_value))


_QUOTE: Final = '"'


class GemmaArguments:
    """`{key:<|"|>text<|"|>,n:3}`: names without quotes, text between marks, else like JSON."""

    _BARE: Final = re.compile(r"[^\s,:{}\[\]<]+")
    _NAME: Final = re.compile(r"[^,:{}]+")

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._brackets = ""  # open
        self._is_key_next = False
        self._is_in_text = False

    def read(self, text: str) -> Progress:
        out, at = "", 0
        while True:
            json_text, end, is_over = self._text(text, at) if self._is_in_text else self._symbol(text, at)
            out += json_text
            if is_over or end == at:
                return Progress(out, end, is_over)
            at = end

    def _text(self, text: str, at: int) -> Progress:
        found = text.find(self._quote, at)
        if found < 0:
            end = len(text) - held_length(text[at:], self._quote)
            return Progress(_escaped(text[at:end]), end)
        self._is_in_text = False
        return Progress(_escaped(text[at:found]) + _QUOTE, found + len(self._quote))

    def _symbol(self, text: str, at: int) -> Progress:
        if at == len(text):
            return Progress("", at)
        symbol = text[at]
        if symbol in "{[" or symbol in "}]":
            self._brackets = self._brackets + symbol if symbol in "{[" else self._brackets[:-1]
            self._is_key_next = symbol == "{"
            return Progress(symbol, at + 1, not self._brackets)
        if symbol in ",:" or symbol.isspace():
            if not symbol.isspace():
                self._is_key_next = symbol == "," and self._brackets.endswith("{")
            return Progress({",": ", ", ":": ": "}.get(symbol, ""), at + 1)
        if text.startswith(self._quote, at):
            self._is_in_text = True
            return Progress(_QUOTE, at + len(self._quote))
        if self._quote.startswith(text[at:]):
            return Progress("", at)
        bare = (self._NAME if self._is_key_next else self._BARE).match(text, at)
        if bare is None:
            return Progress("", at, True)  # nothing that can stand here: the arguments stay open
        if bare.end() == len(text):
            return Progress("", at)
        return Progress(self._word(bare.group(), text, bare.end()), bare.end())

    def _word(self, word: str, text: str, end: int) -> str:
        is_key = text[end] == ":"
        return json.dumps(word, ensure_ascii=False) if is_key or kinds_of(word) is None else word
