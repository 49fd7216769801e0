"""Messages of a chat as OpenAI's clients send them, made plain."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from homeai.errors import Unsupported
from homeai.server.api.body import MAX_ENTRIES, Body
from homeai.server.api.call_arguments import read_arguments
from homeai.server.api.fields import Name, Role
from homeai.server.conversation import ChatMessage, ToolCall


def _kind_of_content(value: object) -> str:
    return "content parts" if isinstance(value, list) else "a text"


class Part(Body):
    """A part of a message. `refusal` is an assistant's text that declined."""

    type: Name
    text: str | None = None
    refusal: str | None = None

    def plain(self) -> dict[str, object]:
        if self.type == "refusal" and self.refusal is not None:
            return {"type": "text", "text": self.refusal}
        return {"type": self.type} if self.text is None else {"type": self.type, "text": self.text}


Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[Part], Field(fail_fast=True, max_length=MAX_ENTRIES), Tag("content parts")],
    Discriminator(_kind_of_content),
]


class CalledFunction(Body):
    name: Name
    arguments: object = None  # JSON text; some clients send the object


class Call(Body):
    """A call that the assistant made. Some clients leave the id out, some the type."""

    id: str | None = None
    type: Name | None = None
    function: CalledFunction | None = None

    def plain(self, path: str) -> ToolCall:
        if self.function is None:
            raise Unsupported(f"{path}: only calls of functions are supported, not {self.type!r}", param=path)
        arguments = read_arguments(self.function.arguments, f"{path}.function.arguments")
        return ToolCall(self.function.name, arguments, self.id)


class Message(Body):
    role: Role
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    function_call: CalledFunction | None = None  # before there were tools
    tool_call_id: str | None = None
    reasoning_content: object = None
    reasoning: object = None
    audio: object = None

    def plain(self, path: str) -> ChatMessage:
        """`path` is where the message stands, for errors. Raises `InvalidRequest`."""
        if self.audio is not None:
            raise Unsupported("an earlier answer in audio is not supported; this model reads text", param=path)
        content = self.content
        return ChatMessage(
            self.role,
            [part.plain() for part in content] if isinstance(content, list) else content,
            self.name,
            self._calls(path),
            self.tool_call_id,
            next((text for text in (self.reasoning_content, self.reasoning) if text and isinstance(text, str)), None),
        )

    def _calls(self, path: str) -> tuple[ToolCall, ...]:
        if self.function_call is not None and not self.tool_calls:
            arguments = read_arguments(self.function_call.arguments, f"{path}.function_call.arguments")
            return (ToolCall(self.function_call.name, arguments),)
        return tuple(call.plain(f"{path}.tool_calls[{index}]") for index, call in enumerate(self.tool_calls or ()))
