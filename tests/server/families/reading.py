"""How tests have an answer read: whole, and cut at any places."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from homeai.server.conversation import Tool
from homeai.server.families.parser import AnswerParser
from homeai.server.families.syntax import ReplyFormat
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning

WEATHER = Tool(
    "get_weather",
    "The weather in a city",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hourly": {"type": "boolean"},
            "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "where": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
)
LIGHT = Tool(
    "turn_on",
    "",
    {"type": "object", "properties": {"lamp": {"$ref": "#/$defs/lamp"}}, "$defs": {"lamp": {"type": "string"}}},
)
TIME = Tool("get_time", "The time", {"type": "object", "properties": {}})
TOOLS = (WEATHER, LIGHT, TIME)


class Call(NamedTuple):
    name: str
    arguments: str
    is_whole: bool

    @property
    def decoded(self) -> object:
        return json.loads(self.arguments)


class Answer(NamedTuple):
    """An answer's parts, joined. `order` is the order of their kinds."""

    reasoning: str
    content: str
    calls: list[Call]
    order: str

    @property
    def decoded(self) -> list[tuple[str, object]]:
        return [(call.name, call.decoded) for call in self.calls if call.is_whole]


def parts_of(
    format: ReplyFormat, pieces: Iterable[str], tools: Sequence[Tool] = TOOLS, *, begins_in_reasoning: bool = False
) -> list[Part]:
    ids = (f"id{number}" for number in itertools.count())
    parser = AnswerParser(format, tools, begins_in_reasoning=begins_in_reasoning, new_call_id=lambda: next(ids))
    parts = [part for piece in pieces for part in parser.push(piece)]
    return parts + parser.finish()


def joined(parts: Sequence[Part]) -> Answer:
    """Also checks what every consumer relies on: order, numbers, nothing empty."""
    reasoning, content, order = "", "", ""
    names: list[str] = []
    arguments: list[str] = []
    ended: set[int] = set()
    for part in parts:
        match part:
            case Reasoning(text):
                assert text
                reasoning += text
            case Content(text):
                assert text
                content += text
            case CallStart(call, call_id, name):
                assert call == len(names)
                assert call_id == f"id{call}"
                names.append(name)
                arguments.append("")
            case CallArguments(call, text):
                assert text
                assert call == len(names) - 1
                assert call not in ended
                arguments[call] += text
            case CallEnd(call):
                assert call == len(names) - 1
                assert call not in ended
                assert isinstance(json.loads(arguments[call]), dict)
                ended.add(call)
        kind = "r" if isinstance(part, Reasoning) else "c" if isinstance(part, Content) else "t"
        order += "" if order.endswith(kind) else kind
    calls = [Call(name, arguments[index], index in ended) for index, name in enumerate(names)]
    return Answer(reasoning, content, calls, order)


def read(
    format: ReplyFormat, text: str | Iterable[str], tools: Sequence[Tool] = TOOLS, *, begins_in_reasoning: bool = False
) -> Answer:
    pieces = [text] if isinstance(text, str) else text
    return joined(parts_of(format, pieces, tools, begins_in_reasoning=begins_in_reasoning))


def cuts(text: str) -> Iterable[list[str]]:
    """The text in two pieces, cut at every place; in three with one lone character; and in single characters."""
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]
        yield [text[:at], text[at : at + 1], text[at + 1 :]]
    yield list(text)
