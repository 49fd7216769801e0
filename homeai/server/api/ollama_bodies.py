"""Request bodies of Ollama's API: what counts, what has no effect here, what is refused."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, cast

from pydantic import Field

from homeai.errors import InvalidRequest
from homeai.server.api.body import MAX_ENTRIES, Body, Integer, Refused
from homeai.server.api.fields import KeepAlive, Name, NumLogprobs
from homeai.server.api.ollama_fields import EFFORTS, Format, Inputs, NoImages, Think
from homeai.server.api.ollama_messages import Message
from homeai.server.api.ollama_options import DrawingOptions, OllamaBody, Options
from homeai.server.api.openai_tools import Tools, toolbox
from homeai.server.ask import Ask
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage
from homeai.server.embeddings import Input

ANY_OBJECT: Final[dict[str, object]] = {}
FIELDS_WITHOUT_EFFECT: Final = {
    "truncate": "a prompt that is too long is refused, never cut",
    "shift": "an answer ends where the context ends",
}


def _wishes(keep_alive: float | None) -> list[str]:
    """Of what is not computed by the model that they are about."""
    return [] if keep_alive is None else ["keep_alive has no effect: vectors are made by a process of their own"]


class GenerationBody(OllamaBody):
    """What both ways of asking for text share."""

    model: Name | None = None
    stream: bool = True
    options: Options = DrawingOptions()
    format: Format = ""
    think: Think | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0

    @property
    def notes(self) -> list[str]:
        return super().notes + self.options.notes

    @property
    def is_unload(self) -> bool:
        """Of a body without a question: whether it asks for the model's end."""
        return self.keep_alive == 0

    @property
    def thinks(self) -> bool | None:
        return self.think if self.think is None or isinstance(self.think, bool) else True

    @property
    def reasoning_effort(self) -> str | None:
        return EFFORTS[self.think] if isinstance(self.think, str) else None

    @property
    def answer_format(self) -> AnswerFormat | None:
        if self.format == "":
            return None
        return AnswerFormat(ANY_OBJECT if isinstance(self.format, str) else self.format, path="format")

    def ask(self) -> Ask:
        return self.options.ask(self.top_logprobs if self.logprobs else None, self.keep_alive)


class ChatBody(GenerationBody):
    """POST /api/chat. `tool_choice` and `parallel_tool_calls`, as in OpenAI's API, are extensions."""

    without_effect: ClassVar = FIELDS_WITHOUT_EFFECT
    ignored: ClassVar = frozenset(FIELDS_WITHOUT_EFFECT)

    messages: Annotated[list[Message], Field(fail_fast=True, max_length=MAX_ENTRIES)] = Field(default_factory=list)
    tools: Tools = Field(default_factory=list)
    tool_choice: object = None
    parallel_tool_calls: bool = True

    def chat(self) -> Chat:
        """Raises `InvalidRequest` for what cannot be read or enforced."""
        box = toolbox(self.tools, self.tool_choice, kind="tools", choice_name="tool_choice")
        return Chat(
            messages=[message.plain(f"messages[{index}]") for index, message in enumerate(self.messages)],
            tools=box.tools,
            tool_choice=box.choice,
            parallel_tool_calls=self.parallel_tool_calls,
            answer_format=self.answer_format,
            thinks=self.thinks,
            reasoning_effort=self.reasoning_effort,
        )


class GenerateBody(GenerationBody):
    """POST /api/generate: a conversation of one question, or, with `raw`, a text that goes on."""

    without_effect: ClassVar = {**FIELDS_WITHOUT_EFFECT, "context": "earlier turns are sent to /api/chat"}
    ignored: ClassVar = frozenset(without_effect)

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    images: NoImages = Field(default_factory=list)
    template: Refused = None

    @property
    def kind(self) -> Literal["load", "gap", "raw", "chat"]:
        """Raises `InvalidRequest` for what does not go together."""
        if not self.prompt and not self.suffix:
            return "load"
        if not self.raw and not self.suffix:
            return "chat"
        name = "suffix" if self.suffix else "raw"
        if self.system:
            raise InvalidRequest(f"{name} and system do not go together: no template is applied", param="system")
        return "gap" if self.suffix else "raw"

    def chat(self) -> Chat:
        system = [ChatMessage("system", self.system)] if self.system else []
        return Chat(
            messages=[*system, ChatMessage("user", self.prompt)],
            answer_format=self.answer_format,
            thinks=self.thinks,
            reasoning_effort=self.reasoning_effort,
        )


class VectorsBody(OllamaBody):
    """What both ways of asking for vectors share."""

    model: Name | None = None
    keep_alive: KeepAlive | None = None
    options: Options = DrawingOptions()

    @property
    def notes(self) -> list[str]:
        return _wishes(self.keep_alive) + super().notes + self.options.notes


class EmbedBody(VectorsBody):
    """POST /api/embed"""

    without_effect: ClassVar = {"truncate": FIELDS_WITHOUT_EFFECT["truncate"]}
    ignored: ClassVar = frozenset(without_effect)

    input: Inputs = Field(default_factory=list)
    dimensions: Annotated[Integer, Field(ge=0)] = 0  # 0: all of them

    @property
    def inputs(self) -> list[Input]:
        """None for an empty text, which only asks whether the model is there."""
        if isinstance(self.input, str):
            return [self.input] if self.input else []
        return cast(list[Input], self.input)


class EmbeddingsBody(VectorsBody):
    """POST /api/embeddings, the older way: one text."""

    prompt: str = ""


class NamedBody(Body):
    """POST /api/show, /api/pull: `name` is what older clients call the model."""

    model: Name | None = None
    name: Name | None = None
    stream: bool = True

    @property
    def wanted(self) -> str:
        wanted = self.model or self.name
        if not wanted:
            raise InvalidRequest("model is required", param="model")
        return wanted
