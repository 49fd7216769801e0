"""Messages made plain, and brought into the order and shape that a chat template takes. Pure.

From here on all text of people is escaped (`vocabulary.py`): templates may put it anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.conversation import ChatMessage, ToolCall
from homeai.server.families.syntax import CallSyntax, ReplyFormat
from homeai.server.families.writing import write_calls

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
ALIASES: Final = {"developer": "system", "function": "tool"}
PARAGRAPH: Final = "\n\n"  # between messages that become one

_NINE: Final = re.compile("[a-zA-Z0-9]{9}")

Escape = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Turn:
    """A message made plain: a known role, escaped text. Every call has an id, and so has every result (role "tool")."""

    role: str
    content: str
    name: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    reasoning: str = ""

    @property
    def is_answer(self) -> bool:
        """Words of the assistant, to the end."""
        return self.role == "assistant" and not self.calls


def plain_turns(messages: Sequence[ChatMessage], escape: Escape, format: ReplyFormat) -> list[Turn]:
    """Raises `InvalidRequest` for roles and contents that cannot be taken, with the place."""
    if not messages:
        raise InvalidRequest("messages is empty; at least one message is needed", param="messages")
    names = _Names(format.call_ids)
    return [_plain(message, f"messages[{index}]", escape, format, names) for index, message in enumerate(messages)]


def escaped(value: object, escape: Escape) -> object:
    """A JSON value with every text in it escaped, keys too."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {escape(str(key)): escaped(item, escape) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [escaped(item, escape) for item in value]
    return value


def _plain(message: ChatMessage, path: str, escape: Escape, format: ReplyFormat, names: _Names) -> Turn:
    role = _role(message.role, f"{path}.role")
    text = _text(message, role, f"{path}.content")
    name = message.name and escape(message.name)
    if role == "tool":
        call_id, call_name = names.answered(message.tool_call_id, message.name)
        return Turn(role, escape(text), escape(call_name) if call_name else name, call_id=escape(call_id))
    if role != "assistant":
        return Turn(role, escape(text), name)
    reasoning, text = (message.reasoning or "", text) if message.reasoning else _split(text, format)
    calls = tuple(
        ToolCall(escape(call.name), _mapping(escaped(call.arguments, escape)), escape(names.called(call)))
        for call in message.tool_calls
    )
    return Turn(role, escape(text), name, calls, reasoning=escape(reasoning))


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping), "arguments are an object"
    return value


def _role(role: str, param: str) -> str:
    if role not in ROLES:
        raise InvalidRequest(f"role {role!r} is not known; allowed are {', '.join(ROLES)}", param=param)
    return ALIASES.get(role, role)


def _text(message: ChatMessage, role: str, param: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        return "\n".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(message.content))
    if role in ("assistant", "tool"):  # as beside a call, or of a tool that returns nothing
        return ""
    raise InvalidRequest(f"a {message.role} message needs content", param=param)


def _part_text(part: Mapping[str, object], param: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise Unsupported(f"content of type {kind!r} is not supported; this model reads text", param=param)
    if not isinstance(text, str):
        raise InvalidRequest(f"text is {type(text).__name__}, not a string", param=f"{param}.text")
    return text


def _split(text: str, format: ReplyFormat) -> tuple[str, str]:
    """Reasoning that a client left in the text of an answer, and the text behind it."""
    begin, end = (mark.strip() for mark in format.reasoning or ("", ""))
    rest = text.lstrip()
    if not begin or not rest.startswith(begin) or end not in rest:
        return "", text
    reasoning, _, answer = rest.removeprefix(begin).partition(end)
    return reasoning.strip(), answer.lstrip()


class _Names:
    """Which call each result answers: by its id; without one by the tool's name, else in the order of the calls."""

    def __init__(self, style: Literal["any", "nine", "numbered"]) -> None:
        self._style = style
        self._num_ids = 0
        self._by_client: dict[str, tuple[str, str]] = {}  # the client's id → ours, the tool's name
        self._open: list[tuple[str, str]] = []  # without a result yet

    def called(self, call: ToolCall) -> str:
        named = (self._id(call.call_id, call.name), call.name)
        if call.call_id:
            self._by_client[call.call_id] = named
        self._open.append(named)
        return named[0]

    def answered(self, call_id: str | None, name: str | None) -> tuple[str, str | None]:
        named = self._by_client.get(call_id or "") or (None if call_id else self._next(name))
        if named is None:
            return self._id(call_id, name or ""), name
        if named in self._open:
            self._open.remove(named)
        return named

    def _next(self, name: str | None) -> tuple[str, str] | None:
        return next((named for named in self._open if name in (None, named[1])), None)

    def _id(self, call_id: str | None, name: str) -> str:
        number, self._num_ids = self._num_ids, self._num_ids + 1
        if self._style == "numbered":
            return f"functions.{name}:{number}"
        if self._style == "nine":
            return call_id if call_id and _NINE.fullmatch(call_id) else f"{number:09d}"
        return call_id or f"call_{number}"


# ---- order and shape -------------------------------------------------------------------------------


def system_first(turns: Sequence[Turn], addition: str = "") -> list[Turn]:
    """All system text in one message in front, `addition` at its end."""
    system = [turn for turn in turns if turn.role == "system"]
    others = [turn for turn in turns if turn.role != "system"]
    if addition:
        system.append(Turn("system", addition))
    return [joined(system), *others] if system else others


def without_system(turns: Sequence[Turn]) -> list[Turn]:
    """The system text as the beginning of the first user message."""
    if not turns or turns[0].role != "system":
        return list(turns)
    system, *others = turns
    if others and others[0].role == "user":
        return [replace(joined([system, others[0]]), role="user", name=others[0].name), *others[1:]]
    return [replace(system, role="user"), *others]


def without_empty_answer(turns: list[Turn]) -> list[Turn]:
    is_empty = turns[-1].is_answer and not turns[-1].content
    return turns[:-1] if is_empty and len(turns) > 1 else turns


def without_reasoning(turns: Sequence[Turn]) -> list[Turn]:
    return [replace(turn, reasoning="") for turn in turns]


def alternating(turns: Sequence[Turn]) -> list[Turn]:
    """Neighbours of one role as one message; each result of a tool stays one."""
    merged: list[Turn] = []
    for role, group in groupby(turns, key=lambda turn: turn.role):
        neighbours = list(group)
        merged += neighbours if role == "tool" else [joined(neighbours)]
    return merged


def one_call_each(turns: Sequence[Turn]) -> list[Turn]:
    """For templates that take one call in a message: each call by itself, followed by its result."""
    results = {turn.call_id: turn for turn in turns if turn.role == "tool"}
    moved = {call.call_id for turn in turns if len(turn.calls) > 1 for call in turn.calls}
    out: list[Turn] = []
    for turn in turns:
        if turn.role == "tool" and turn.call_id in moved:
            continue
        out += _one_by_one(turn, results) if len(turn.calls) > 1 else [turn]
    return out


def _one_by_one(turn: Turn, results: Mapping[str | None, Turn]) -> Iterator[Turn]:
    for index, call in enumerate(turn.calls):
        yield replace(
            turn, content="" if index else turn.content, calls=(call,), reasoning="" if index else turn.reasoning
        )
        if call.call_id in results:
            yield results[call.call_id]


def text_before_calls(turns: Sequence[Turn]) -> list[Turn]:
    """For templates that drop what is said beside a call: that as a message of its own."""
    out: list[Turn] = []
    for turn in turns:
        if turn.calls and turn.content:
            out += [replace(turn, calls=(), reasoning=""), replace(turn, content="")]
        else:
            out.append(turn)
    return out


def calls_as_text(turns: Sequence[Turn], syntax: CallSyntax) -> list[Turn]:
    """For templates that drop calls: they as the model would write them."""
    return [
        replace(turn, content="\n".join(filter(None, [turn.content, write_calls(syntax, turn.calls)])), calls=())
        if turn.calls
        else turn
        for turn in turns
    ]


def results_as_text(turns: Sequence[Turn]) -> list[Turn]:
    """For templates that know no tools: their results as the user's words."""
    return [
        Turn("user", f"<tool_response>\n{turn.content}\n</tool_response>") if turn.role == "tool" else turn
        for turn in turns
    ]


def joined(turns: Sequence[Turn]) -> Turn:
    return replace(
        turns[0],
        content=PARAGRAPH.join(turn.content for turn in turns if turn.content),
        calls=tuple(call for turn in turns for call in turn.calls),
        reasoning=PARAGRAPH.join(turn.reasoning for turn in turns if turn.reasoning),
    )
