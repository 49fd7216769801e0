"""Messages of a chat as Ollama's clients send them, made plain."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from homeai.errors import Unsupported
from homeai.server.api.body import MAX_ENTRIES, Body
from homeai.server.api.call_arguments import read_arguments
from homeai.server.api.fields import Name, Role
from homeai.server.api.ollama_fields import NO_IMAGES
from homeai.server.api.openai_messages import Content
from homeai.server.conversation import ChatMessage, ToolCall


class CalledFunction(Body):
    name: Name
    arguments: object = None  # an object; some clients send its JSON text


class Call(Body):
    id: str | None = None
    function: CalledFunction


class Message(Body):
    """`tool_name`, and sometimes `tool_call_id`, say which call a tool message answers; many clients send neither."""

    role: Role
    content: Content | None = None
    thinking: str | None = None
    images: Annotated[list[object], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True, max_length=MAX_ENTRIES)] | None = None
    tool_name: Name | None = None
    tool_call_id: str | None = None

    def plain(self, path: str) -> ChatMessage:
        """`path` is where the message stands, for errors. Raises `InvalidRequest`."""
        if self.images:
            raise Unsupported(f"{path}.images {NO_IMAGES}", param=f"{path}.images")
        return ChatMessage(
            self.role,
            [part.plain() for part in self.content] if isinstance(self.content, list) else self.content,
            self.tool_name,
            tuple(
                ToolCall(
                    call.function.name,
                    read_arguments(call.function.arguments, f"{path}.tool_calls[{index}].function.arguments"),
                    call.id,
                )
                for index, call in enumerate(self.tool_calls or ())
            ),
            self.tool_call_id,
            self.thinking or None,
        )
