"""Request bodies of /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import MAX_ENTRIES, Body, Integer, Refused
from homeai.server.api.fields import INT32_MAX, Count, Name, NumLogprobs, Penalty, Texts
from homeai.server.api.openai_reasoning import Effort, ReasoningWish, thinking
from homeai.server.api.responses_items import Item, chat_messages
from homeai.server.api.responses_tools import Toolbox, Tools, toolbox
from homeai.server.ask import Ask
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage

LOGPROBS: Final = "message.output_text.logprobs"  # in `include`
SCHEMA_PATH: Final = "text.format.schema"


def _kind_of_input(value: object) -> str:
    return "input items" if isinstance(value, list) else "a text"


Input = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[Item], Field(fail_fast=True, max_length=MAX_ENTRIES), Tag("input items")],
    Discriminator(_kind_of_input),
]


class Format(Body):
    type: Name
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    json_schema: dict[str, object] | bool | None = Field(default=None, alias="schema")


class TextBody(Body):
    format: Format | None = None
    verbosity: Name | None = None

    @property
    def wanted(self) -> Format:
        return self.format or Format(type="text")

    @property
    def as_sent(self) -> dict[str, object]:
        fields: dict[str, object] = {"format": self.wanted.model_dump(by_alias=True, exclude_none=True)}
        return fields if self.verbosity is None else fields | {"verbosity": self.verbosity}


class ReasoningBody(Body):
    effort: Effort | None = None
    summary: Name | None = None
    generate_summary: Name | None = None  # the older name of `summary`

    @property
    def wants_summary(self) -> bool:
        return (self.summary or self.generate_summary or "none") != "none"

    @property
    def as_sent(self) -> dict[str, object]:
        return {"effort": self.effort, "summary": self.summary}


class InputBody(Body):
    """POST /v1/responses/input_tokens"""

    model_config = ConfigDict(json_schema_extra={"required": ["input"]})
    ignored: ClassVar[frozenset[str]] = frozenset(("text.verbosity", "truncation", "tools[].strict"))

    model: Name | None = None
    input: Input = ""
    instructions: str | None = None
    tools: Tools = Field(default_factory=list)
    tool_choice: object = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningBody = ReasoningBody()
    text: TextBody = TextBody()
    truncation: Literal["auto", "disabled"] = "disabled"
    previous_response_id: Refused = None
    conversation: Refused = None
    prompt: Refused = None

    def toolbox(self, notes: list[str]) -> Toolbox:
        """`notes` gains what was skipped. Raises `InvalidRequest` naming the field."""
        return toolbox(self.tools, self.tool_choice, notes)

    def chat(self, box: Toolbox, notes: list[str]) -> Chat:
        """`notes` gains what was left out. Raises `InvalidRequest` naming the field."""
        if self.truncation == "auto":
            notes.append("truncation has no effect: nothing of a prompt is dropped")
        thinks, effort = thinking(self.reasoning.effort, ReasoningWish(), {}, None)
        return Chat(
            messages=self._messages(notes),
            tools=box.tools,
            tool_choice=box.choice,
            parallel_tool_calls=self.parallel_tool_calls,
            answer_format=self._answer_format(),
            thinks=thinks,
            reasoning_effort=effort,
            continues=False,
        )

    def _messages(self, notes: list[str]) -> list[ChatMessage]:
        if not self.input:
            raise InvalidRequest("input is empty; a text or at least one item is needed", param="input")
        instructions = [ChatMessage("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*instructions, ChatMessage("user", self.input)]
        return [*instructions, *chat_messages(self.input, notes)]

    def _answer_format(self) -> AnswerFormat | None:
        wanted = self.text.wanted
        match wanted.type:
            case "text":
                return None
            case "json_object":
                return AnswerFormat({}, path="text.format")
            case "json_schema" if wanted.json_schema is None:
                raise InvalidRequest(f"{SCHEMA_PATH}: field required", param=SCHEMA_PATH)
            case "json_schema":
                return AnswerFormat(wanted.json_schema, path=SCHEMA_PATH)
            case _:
                raise Unsupported(
                    f"text.format.type is {wanted.type!r:.80}; supported are 'text', 'json_object' and 'json_schema'",
                    param="text.format.type",
                )


class ResponsesBody(InputBody):
    """POST /v1/responses"""

    ignored: ClassVar[frozenset[str]] = InputBody.ignored | frozenset(
        (
            *("max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_retention"),
            *("prompt_cache_options", "safety_identifier", "service_tier", "store", "stream_options"),
            *("moderation", "context_management"),
        )
    )

    stream: bool = False
    max_output_tokens: Annotated[Integer, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = SamplingParams().temperature
    top_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().top_p
    top_k: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = SamplingParams().top_k
    min_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().min_p
    min_tokens: Count = 0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    ignore_eos: bool = False
    top_logprobs: NumLogprobs | None = None
    user: str | None = None
    background: Refused = None

    # said again in the answer
    include: Texts = Field(default_factory=list)
    max_tool_calls: Integer | None = None
    metadata: dict[str, object] = Field(default_factory=dict)
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs is not None

    def ask(self) -> Ask:
        sampling = SamplingParams(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            min_tokens=self.min_tokens,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logprobs=self.top_logprobs or 0 if self.wants_logprobs else None,
            ignore_eos=self.ignore_eos,
        )
        return Ask(
            model=self.model,
            sampling=sampling,
            max_tokens=self.max_output_tokens,
            seed=None if self.seed in (None, -1) else self.seed % 2**64,
            user=self.user,
        )
