"""Messages of Anthropic's API, made of blocks → messages as every family of APIs has them.

What there is no way to read is refused; what only Anthropic's own servers could have made is left out, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag

from homeai.errors import Unsupported
from homeai.server.api.body import MAX_ENTRIES, Body
from homeai.server.api.fields import Name, Role
from homeai.server.api.notes import add_note
from homeai.server.conversation import ChatMessage, ToolCall

BILLING_HEADER: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")  # Claude Code's; new at each request
ERROR: Final = "Error:"
REFUSED: Final = ("image", "document", "search_result", "container_upload")

Part = Mapping[str, object]


class TextBlock(Body):
    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str | None = None


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, object]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Content | None = None
    is_error: bool | None = None


class OtherBlock(Body):
    type: Name
    tool_name: Name | None = None  # of a tool_reference


def _kind_of_block(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"{kind} block" if kind in ("text", "thinking", "tool_use", "tool_result") else "other block"


def _kind_of_content(value: object) -> str:
    return "content blocks" if isinstance(value, list) else "a text"


Block = Annotated[
    Annotated[TextBlock, Tag("text block")]
    | Annotated[ThinkingBlock, Tag("thinking block")]
    | Annotated[ToolUseBlock, Tag("tool_use block")]
    | Annotated[ToolResultBlock, Tag("tool_result block")]
    | Annotated[OtherBlock, Tag("other block")],
    Discriminator(_kind_of_block),
]
Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[Block], Field(fail_fast=True, max_length=MAX_ENTRIES), Tag("content blocks")],
    Discriminator(_kind_of_content),
]


class Message(Body):
    role: Role
    content: Content


def system_message(system: str | Sequence[TextBlock]) -> ChatMessage:
    """Without the billing header: it is for Anthropic's books, and would make every prompt a new one."""
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    if texts and (match := BILLING_HEADER.match(texts[0])):
        texts = [rest] if (rest := texts[0][match.end() :]) else []
        texts += [] if isinstance(system, str) else [block.text for block in system[1:]]
    return ChatMessage("system", [_text(text) for text in texts])


def chat_messages(messages: Sequence[Message], notes: list[str]) -> list[ChatMessage]:
    """Raises `Unsupported` naming the block. `notes` gains what was left out."""
    reader = _Reader(notes)
    return [read for index, message in enumerate(messages) for read in reader.read(message, f"messages[{index}]")]


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


@dataclass(slots=True)
class _Reader:
    """Remembers the names of the calls that later results answer."""

    notes: list[str]
    _tools: dict[str, str] = field(default_factory=dict)

    def read(self, message: Message, path: str) -> Iterator[ChatMessage]:
        if isinstance(message.content, str):
            yield ChatMessage(message.role, message.content)
        elif message.role == "assistant":
            yield self._assistant(message.content, f"{path}.content")
        else:
            yield from self._user(message.role, message.content, f"{path}.content")

    def _assistant(self, blocks: Sequence[Block], path: str) -> ChatMessage:
        parts: list[Part] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for index, block in enumerate(blocks):
            match block:
                case TextBlock():
                    parts.append(_text(block.text))
                case ThinkingBlock():
                    thoughts.append(block.thinking or "")
                case ToolUseBlock():
                    self._tools[block.id] = block.name
                    calls.append(ToolCall(block.name, block.input, block.id))
                case _:
                    parts += self._other(block, f"{path}[{index}]")
        reasoning = "\n".join(filter(None, thoughts)) or None
        return ChatMessage("assistant", parts or None, tool_calls=tuple(calls), reasoning=reasoning)

    def _user(self, role: str, blocks: Sequence[Block], path: str) -> Iterator[ChatMessage]:
        """A message of results and text becomes several, in their order."""
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            match block:
                case TextBlock():
                    parts.append(_text(block.text))
                case ToolResultBlock():
                    if parts:
                        yield ChatMessage(role, parts)
                        parts = []
                    yield self._result(block, f"{path}[{index}]")
                case _:
                    parts += self._other(block, f"{path}[{index}]")
        if parts or not blocks:
            yield ChatMessage(role, parts)

    def _result(self, result: ToolResultBlock, path: str) -> ChatMessage:
        content = result.content or ""
        parts: list[Part] = [_text(content)] if isinstance(content, str) else []
        for index, block in enumerate(() if isinstance(content, str) else content):
            if isinstance(block, TextBlock):
                parts.append(_text(block.text))
            else:
                parts += self._other(block, f"{path}.content[{index}]")
        if result.is_error:
            parts = [_text(ERROR), *parts]
        return ChatMessage("tool", parts, name=self._tools.get(result.tool_use_id), tool_call_id=result.tool_use_id)

    def _other(self, block: Block, path: str) -> list[Part]:
        """What is neither text nor belongs to this role."""
        kind = block.type
        if isinstance(block, OtherBlock):
            if kind == "tool_reference":
                return [_text(block.tool_name or "")]
            if kind == "redacted_thinking":
                return []
            if kind not in REFUSED:
                note = f"content of type {kind!r} was left out"
                add_note(self.notes, note)
                return []
        raise Unsupported(f"{path}: content of type {kind!r} is not supported here", param=path)
