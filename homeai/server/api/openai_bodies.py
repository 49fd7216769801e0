"""Request bodies of /v1/chat/completions and /v1/completions, with the extensions of llama-server and vLLM."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import Body, Integer, Refused
from homeai.server.ask import Ask
from homeai.server.conversation import Chat, ChatMessage

MAX_LOGPROBS: Final = 20
MAX_STOP: Final = 64
MAX_BIASED: Final = 65536
MAX_PROMPTS: Final = 256  # the most that scheduler.max_num_seqs can be

INT32_MAX: Final = 2**31 - 1


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _kind_of_prompt(value: object) -> str:
    if not isinstance(value, list):
        return "a text"
    first = value[0] if value else ""
    if isinstance(first, str):
        return "many texts"
    return "many id lists" if isinstance(first, list) else "token ids"


def _kind_of_content(value: object) -> str:
    return "content parts" if isinstance(value, list) else "a text"


def _text_only(response_format: dict[str, object]) -> dict[str, object]:
    if response_format.get("type") != "text":
        raise Unsupported("only response_format {'type': 'text'} is supported", param="response_format")
    return response_format


def _without_speech(modalities: list[str]) -> list[str]:
    if modalities != ["text"]:
        raise Unsupported("this model answers in text only", param="modalities")
    return modalities


def _not_too_many(bias: object) -> object:
    """First of all: pydantic would look at a million entries one by one, and collect what is wrong with each."""
    if isinstance(bias, dict) and len(bias) > MAX_BIASED:
        raise InvalidRequest(
            f"logit_bias names too many tokens: {len(bias)} > {MAX_BIASED} maximum", param="logit_bias"
        )
    return bias


Count = Annotated[Integer, Field(ge=0)]
MaxTokens = Annotated[Integer, Field(ge=-1)]  # -1, as llama-server's clients say it: up to the model's length
Penalty = Annotated[float, Field(ge=-2, le=2)]
Repetition = Annotated[float, Field(ge=0.01, le=10)]  # nearer to 0, a penalised logit would overflow
NumLogprobs = Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)]
Name = Annotated[str, Field(max_length=256)]  # errors repeat it
Stop = Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOP), BeforeValidator(_as_list)]

Bias = Annotated[
    dict[Annotated[int, Field(strict=False)], Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_not_too_many),
]

# One mistake is enough: a million of them, each reported, would keep everybody waiting for a minute.
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS), Tag("many texts")]
    | Annotated[TokenIds, Tag("token ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS), Tag("many id lists")],
    Discriminator(_kind_of_prompt),
]


class StreamOptions(Body):
    include_usage: bool | None = None


class SamplingBody(Body):
    """What both endpoints share."""

    default_max_tokens: ClassVar[int | None] = None  # up to the model's length

    model: Name | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[Integer, Field(ge=1)] = 1
    max_tokens: MaxTokens | None = None
    n_predict: MaxTokens | None = None  # llama-server's name for it
    min_tokens: Count = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = SamplingParams().temperature
    top_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().top_p
    top_k: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = SamplingParams().top_k
    min_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().min_p
    repeat_penalty: Repetition | None = None
    repetition_penalty: Repetition = 1.0  # vLLM's name for it
    repeat_last_n: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = SamplingParams().repeat_last_n
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Bias = Field(default_factory=dict)
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stop = Field(default_factory=list)
    ignore_eos: bool = False
    cache_prompt: bool = True  # llama-server's: false computes all of the prompt
    user: str | None = None
    sse_ping_interval: float | None = None  # llama-server's: seconds, 0 or less is off
    response_format: Annotated[dict[str, object], AfterValidator(_text_only)] | None = None
    grammar: Refused = None
    json_schema: Refused = None

    @property
    def fixed_seed(self) -> int | None:
        """None, or −1 as llama.cpp's clients say it: draw one."""
        return None if self.seed is None or self.seed == -1 else self.seed % 2**64

    def ask(self) -> Ask:
        wanted = self.wanted_tokens if self.wanted_tokens is not None else self.default_max_tokens
        return Ask(
            model=self.model,
            sampling=SamplingParams(
                temperature=self.temperature,
                top_k=max(self.top_k, 0),
                top_p=self.top_p,
                min_p=self.min_p,
                repeat_penalty=self.repeat_penalty or self.repetition_penalty,
                repeat_last_n=self.repeat_last_n,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=self.logit_bias,
                logprobs=self.num_logprobs,
                min_tokens=self.min_tokens,
                ignore_eos=self.ignore_eos,
            ),
            max_tokens=None if wanted == -1 else wanted,
            seed=self.fixed_seed,
            stop=self.stop,
            n=self.n,
            cache_prompt=self.cache_prompt,
            user=self.user,
        )

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens if self.max_tokens is not None else self.n_predict

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError


class TextPart(Body):
    type: Name
    text: str | None = None


Content = Annotated[
    Annotated[str, Tag("a text")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("content parts")],
    Discriminator(_kind_of_content),
]


class Message(Body):
    role: Name
    content: Content | None = None
    name: str | None = None
    tool_calls: list[object] | None = None


def _plain(content: str | list[TextPart] | None) -> str | list[dict[str, object]] | None:
    return [part.model_dump(exclude_none=True) for part in content] if isinstance(content, list) else content


class ChatBody(SamplingBody):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(fail_fast=True)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0
    tools: list[object] | None = None
    tool_choice: object = None
    functions: list[object] | None = None
    function_call: object = None
    modalities: Annotated[list[str], AfterValidator(_without_speech)] | None = None
    audio: Refused = None
    web_search_options: Refused = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else super().wanted_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def chat(self) -> Chat:
        """Raises for what cannot be enforced or read: nothing a client asked for is dropped silently."""
        _check_tools("tools", self.tools, "tool_choice", self.tool_choice)
        _check_tools("functions", self.functions, "function_call", self.function_call)
        return Chat(messages=[ChatMessage(m.role, _plain(m.content), m.name) for m in self.messages])


def _check_tools(kind: str, tools: list[object] | None, choice_name: str, choice: object) -> None:
    if tools and choice != "none":
        raise Unsupported(f"{kind} are not supported yet", param=kind)
    if choice not in (None, "none", "auto"):
        raise InvalidRequest(f"{choice_name} asks for a tool, but {kind} declares none", param=choice_name)


class CompletionBody(SamplingBody):
    """POST /v1/completions"""

    default_max_tokens: ClassVar = 16  # OpenAI's; a chat goes on to its natural end

    prompt: Prompt
    logprobs: NumLogprobs | None = None
    best_of: Integer = 1
    echo: Refused = None
    suffix: Refused = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt, as text or as token ids."""
        if self.best_of > self.n:
            raise Unsupported(f"best_of {self.best_of} > n {self.n} is not supported", param="best_of")
        if not isinstance(self.prompt, list):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt is empty", param="prompt")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast(list[str | list[int]], self.prompt)
