"""What a chat asks for, whatever the API it came through. Every family of APIs reads its bodies into these words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

TURN_CHARS = 16  # what a template writes around a message, about

Schema = Mapping[str, object] | bool
"""A JSON schema, as `json.loads` gives it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made earlier. `arguments` is the decoded object; clients may leave out `call_id`."""

    name: str
    arguments: Mapping[str, object]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as the client sent it. `content` may be a list of parts, `{"type": "text", "text": …}`.

    `tool_calls` and `reasoning` are an assistant's; `tool_call_id` (and `name`) say what a tool message answers.
    """

    role: str
    content: str | Sequence[Mapping[str, object]] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def num_chars(self) -> int:
        """About how much there is to tokenise."""
        content = self.content or ""
        text = [content] if isinstance(content, str) else [str(part.get("text")) for part in content]
        calls = sum(len(call.name) + len(str(call.arguments)) for call in self.tool_calls)
        return TURN_CHARS + len(self.name or "") + len(self.reasoning or "") + calls + sum(map(len, text))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the assistant may call. `path` is where the client's body declares it, for errors."""

    name: str
    description: str = ""
    parameters: Schema = field(default_factory=lambda: {"type": "object", "properties": {}})
    path: str = "tools"

    @property
    def num_chars(self) -> int:
        """About how much there is to tokenise."""
        return TURN_CHARS + len(self.name) + len(self.description) + len(str(self.parameters))


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`required`: at least one call. `name`: that tool and no other (then `mode` is "required")."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The answer's text must be JSON that fits `schema` ({}: any object), or text that fits `grammar`.

    `path` is where the client's body says so, for errors. Exactly one of the two is set.
    """

    schema: Schema | None = None
    grammar: str | None = None  # GBNF, as llama-server takes it, or Lark as llguidance does
    path: str = "response_format"

    @property
    def num_chars(self) -> int:
        """About how much there is to read."""
        return len(self.grammar or "") + len(str(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation and how it is to be answered.

    `thinks` None: as the source's and the model's own default; False: no reasoning, True: with it, and
    `reasoning_effort` how much ("low", "medium", "high"). `continues` None: a last message of the assistant is
    continued, an empty one answered.
    """

    messages: Sequence[ChatMessage]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    answer_format: AnswerFormat | None = None
    thinks: bool | None = None
    reasoning_effort: str | None = None
    continues: bool | None = None
    template_arguments: Mapping[str, object] = field(default_factory=dict)  # chat_template_kwargs
