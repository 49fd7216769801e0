"""Request bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Discriminator, Field, Tag

from homeai.errors import InvalidRequest
from homeai.request import SamplingParams
from homeai.server.api.anthropic_blocks import Message, TextBlock, chat_messages, system_message
from homeai.server.api.body import MAX_ENTRIES, Body, Integer, Refused
from homeai.server.api.choices import check_choice, check_names
from homeai.server.api.fields import INT32_MAX, MAX_STOP, Name
from homeai.server.api.openai_tools import MAX_TOOLS, TOOL_NAME
from homeai.server.ask import Ask
from homeai.server.conversation import AnswerFormat, Chat, Schema, Tool, ToolChoice

ANY_MODEL: Final = "claude"  # clients ask for Anthropic's own: that is the resident one
EFFORTS: Final = {"xhigh": "high", "max": "high"}  # more than that has no name elsewhere
MODES: Final[dict[str, Literal["none", "auto", "required"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def _kind_of_system(value: object) -> str:
    return "text blocks" if isinstance(value, list) else "a text"


System = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[TextBlock], Field(fail_fast=True, max_length=MAX_ENTRIES), Tag("text blocks")],
    Discriminator(_kind_of_system),
]


class ToolBody(Body):
    """A tool of the client's own (`type` absent or "custom"), or one that Anthropic defines."""

    type: Name | None = None
    name: Name | None = None
    description: str | None = None
    input_schema: dict[str, object] | None = None

    @property
    def is_custom(self) -> bool:
        return self.type in (None, "custom")


class ToolChoiceBody(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: Integer | None = None


class Format(Body):
    type: Literal["json_schema"]
    json_schema: dict[str, object] = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class Metadata(Body):
    user_id: str | None = None


class CountBody(Body):
    """POST /v1/messages/count_tokens"""

    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            *("betas", "cache_control", "container", "context_management", "diagnostics", "inference_geo"),
            *("service_tier", "speed", "user_profile_id", "workspace_id", "metadata"),
            *("thinking.budget_tokens", "thinking.display", "tools[].cache_control", "tools[].defer_loading"),
            *("tools[].eager_input_streaming", "tools[].allowed_callers", "tools[].input_examples", "tools[].strict"),
        )
    )

    model: Name | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, max_length=MAX_ENTRIES, json_schema_extra={"minItems": 1})]
    system: System | None = None
    tools: Annotated[list[ToolBody], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoiceBody = ToolChoiceBody(type="auto")
    thinking: Thinking = Thinking(type="disabled")
    output_config: OutputConfig = OutputConfig()
    output_format: Format | None = None  # the older name of output_config.format
    mcp_servers: Refused = None

    @property
    def resident_model(self) -> str | None:
        """None for any of Anthropic's names."""
        return None if self.model is None or self.model.startswith(ANY_MODEL) else self.model

    def chat(self, notes: list[str]) -> Chat:
        """`notes` gains what was left out. Raises `InvalidRequest` naming the field."""
        system = [] if self.system is None else [system_message(self.system)]
        effort = self.output_config.effort
        tools, choice = self._tools(notes), ToolChoice(MODES[self.tool_choice.type], self._chosen())
        check_names(tools, "tools")
        check_choice(choice, tools, "tool_choice")
        return Chat(
            messages=[*system, *chat_messages(self.messages, notes)],
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=not self.tool_choice.disable_parallel_tool_use,
            answer_format=self._answer_format(),
            thinks=self._thinks(notes),
            reasoning_effort=EFFORTS.get(effort, effort) if effort else None,
        )

    def _chosen(self) -> str | None:
        if self.tool_choice.type != "tool":
            return None
        if self.tool_choice.name is None:
            raise InvalidRequest("tool_choice.name: field required", param="tool_choice.name")
        return self.tool_choice.name

    def _tools(self, notes: list[str]) -> tuple[Tool, ...]:
        """Those that Anthropic's servers would run, or whose schema only its models know, are skipped."""
        skipped = [tool.name or tool.type or "" for tool in self.tools if not tool.is_custom]
        if skipped:
            notes.append(f"tools that only Anthropic defines were skipped: {', '.join(skipped)}")
        return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools) if tool.is_custom)

    def _answer_format(self) -> AnswerFormat | None:
        if self.output_config.format is not None:
            return AnswerFormat(schema=self.output_config.format.json_schema, path="output_config.format.schema")
        if self.output_format is not None:
            return AnswerFormat(schema=self.output_format.json_schema, path="output_format.schema")
        return None

    def _thinks(self, notes: list[str]) -> bool | None:
        """Who does not ask for it gets none, and reads `content[0]` as the answer."""
        if self.thinking.budget_tokens is not None:
            notes.append("thinking.budget_tokens has no effect")
        return {"enabled": True, "disabled": False}.get(self.thinking.type)


class MessagesBody(CountBody):
    """POST /v1/messages"""

    ignored: ClassVar[frozenset[str]] = CountBody.ignored - {"metadata"}

    max_tokens: Annotated[Integer, Field(ge=0)]  # 0 computes the prompt, for those who will ask again
    stream: bool = False
    stop_sequences: Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOP)] = Field(default_factory=list)
    temperature: Annotated[float, Field(ge=0, le=1)] = SamplingParams().temperature
    top_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().top_p
    top_k: Annotated[Integer, Field(ge=0, le=INT32_MAX)] = SamplingParams().top_k
    ignore_eos: bool = False  # what load meters send
    metadata: Metadata = Metadata()

    def ask(self) -> Ask:
        sampling = SamplingParams(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, ignore_eos=self.ignore_eos
        )
        return Ask(
            model=self.resident_model,
            sampling=sampling,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            user=self.metadata.user_id,
        )


def _tool(tool: ToolBody, path: str) -> Tool:
    if tool.name is None:
        raise InvalidRequest(f"{path}.name: field required", param=f"{path}.name")
    if re.fullmatch(TOOL_NAME, tool.name) is None:
        raise InvalidRequest(f"{path}.name: string should match pattern '{TOOL_NAME}'", param=f"{path}.name")
    if tool.input_schema is None:
        raise InvalidRequest(f"{path}.input_schema: field required", param=f"{path}.input_schema")
    schema: Schema = tool.input_schema
    return Tool(tool.name, tool.description or "", schema, path=f"{path}.input_schema")
