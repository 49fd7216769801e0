"""What a conversation is made of in the Responses API: items, of which several may be one message here.

An assistant's turn comes as items of their own for its thoughts, its text and its calls, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag

from homeai.errors import Unsupported
from homeai.server.api.body import MAX_ENTRIES, Body
from homeai.server.api.call_arguments import read_arguments
from homeai.server.api.fields import Name, Role
from homeai.server.api.notes import add_note
from homeai.server.api.responses_tools import full_name, text_arguments
from homeai.server.conversation import ChatMessage, ToolCall

STORED: Final = ("item_reference", "compaction")  # only who stores answers can read these
TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")


class Part(Body):
    type: Name
    text: str | None = None
    refusal: str | None = None


def _kind_of_content(value: object) -> str:
    return "content parts" if isinstance(value, list) else "a text"


Parts = Annotated[list[Part], Field(fail_fast=True, max_length=MAX_ENTRIES)]
Content = Annotated[
    Annotated[str, Tag("a text")] | Annotated[Parts, Tag("content parts")], Discriminator(_kind_of_content)
]


class MessageItem(Body):
    type: Literal["message"] | None = None
    role: Role
    content: Content


class FunctionCallItem(Body):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    namespace: Name | None = None
    arguments: object = None  # JSON text


class CustomCallItem(Body):
    type: Literal["custom_tool_call"]
    call_id: Name
    name: Name
    namespace: Name | None = None
    input: str


class CallOutputItem(Body):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Name
    output: Content


class ReasoningItem(Body):
    type: Literal["reasoning"]
    summary: Parts | None = None
    content: Parts | None = None


class OtherItem(Body):
    type: Name


KINDS: Final = {
    "message": "message item",
    "function_call": "function_call item",
    "custom_tool_call": "custom_tool_call item",
    "function_call_output": "output item",
    "custom_tool_call_output": "output item",
    "reasoning": "reasoning item",
}


def _kind_of_item(value: object) -> str:
    """A message may leave its type out."""
    kind = value.get("type") or "message" if isinstance(value, dict) else None
    return KINDS.get(kind, "other item") if isinstance(kind, str) else "other item"


Item = Annotated[
    Annotated[MessageItem, Tag("message item")]
    | Annotated[FunctionCallItem, Tag("function_call item")]
    | Annotated[CustomCallItem, Tag("custom_tool_call item")]
    | Annotated[CallOutputItem, Tag("output item")]
    | Annotated[ReasoningItem, Tag("reasoning item")]
    | Annotated[OtherItem, Tag("other item")],
    Discriminator(_kind_of_item),
]


def chat_messages(items: Sequence[Item], notes: list[str]) -> list[ChatMessage]:
    """Raises `InvalidRequest` naming the item. `notes` gains what was left out."""
    reader = _Reader(notes)
    for index, item in enumerate(items):
        reader.read(item, f"input[{index}]")
    return reader.messages


@dataclass(slots=True)
class _Reader:
    """Remembers the names of the calls that later outputs answer."""

    notes: list[str]
    messages: list[ChatMessage] = field(default_factory=list)
    _tools: dict[str, str] = field(default_factory=dict)

    def read(self, item: Item, path: str) -> None:
        match item:
            case MessageItem(role="assistant"):
                self._say(_content(item.content, f"{path}.content"))
            case MessageItem():
                self.messages.append(ChatMessage(item.role, _content(item.content, f"{path}.content")))
            case FunctionCallItem():
                self._call(item, read_arguments(item.arguments, f"{path}.arguments"))
            case CustomCallItem():
                self._call(item, text_arguments(item.input))
            case CallOutputItem():
                content = _content(item.output, f"{path}.output")
                name = self._tools.get(item.call_id)
                self.messages.append(ChatMessage("tool", content, name=name, tool_call_id=item.call_id))
            case ReasoningItem():
                self._think(item, path)
            case _:
                self._leave_out(item.type, path)

    def _say(self, content: str | Sequence[Mapping[str, object]]) -> None:
        turn = self._turn()
        if turn.content is None:
            self.messages[-1] = replace(turn, content=content)
        else:
            self.messages.append(ChatMessage("assistant", content))

    def _call(self, item: FunctionCallItem | CustomCallItem, arguments: Mapping[str, object]) -> None:
        name = full_name(item.name, item.namespace)
        self._tools[item.call_id] = name
        turn = self._turn()
        self.messages[-1] = replace(turn, tool_calls=(*turn.tool_calls, ToolCall(name, arguments, item.call_id)))

    def _think(self, item: ReasoningItem, path: str) -> None:
        """The thoughts themselves where they are there, else what is said of them; often neither."""
        parts = item.content or item.summary or ()
        thoughts = "\n".join([_text(part, f"{path}.content[{index}]") for index, part in enumerate(parts)])
        if thoughts:
            turn = self._turn()
            reasoning = f"{turn.reasoning}\n{thoughts}" if turn.reasoning else thoughts
            self.messages[-1] = replace(turn, reasoning=reasoning)

    def _turn(self) -> ChatMessage:
        """The assistant's message that is under way, at the end of all messages."""
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(ChatMessage("assistant"))
        return self.messages[-1]

    def _leave_out(self, kind: str, path: str) -> None:
        if kind in STORED:
            raise Unsupported(f"{path}: {kind!r} is not supported: nothing is stored here", param=path)
        note = f"input items of type {kind!r} were left out"
        add_note(self.notes, note)


def _content(content: str | list[Part], path: str) -> str | list[Mapping[str, object]]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": _text(part, f"{path}[{index}]")} for index, part in enumerate(content)]


def _text(part: Part, path: str) -> str:
    if part.type not in TEXTS:
        raise Unsupported(f"{path}: content of type {part.type!r} is not supported; this model reads text", param=path)
    return (part.refusal if part.text is None else part.text) or ""
