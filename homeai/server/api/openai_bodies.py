"""Request bodies of /v1/chat/completions and /v1/completions, with the extensions of llama-server and vLLM."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from pydantic import Field, model_validator

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import Body
from homeai.server.prompts import ChatMessage
from homeai.server.text import Text

MAX_LOGPROBS = 20
MAX_STOP = 64

TokenId = Annotated[int, Field(ge=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(Body):
    include_usage: bool = False


class SamplingBody(Body):
    """What both endpoints share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[int, Field(ge=1)] = 1
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = SamplingParams().temperature
    top_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().top_p
    top_k: Annotated[int, Field(ge=-1)] = SamplingParams().top_k
    min_p: Annotated[float, Field(ge=0, le=1)] = SamplingParams().min_p
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0  # vLLM's name for it
    repeat_last_n: Annotated[int, Field(ge=-1)] = SamplingParams().repeat_last_n
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = {}
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: list[str] = []
    ignore_eos: bool = False
    user: str | None = None
    sse_ping_interval: float | None = None  # llama-server's: seconds, 0 or less is off

    @model_validator(mode="before")
    @classmethod
    def _stop_is_a_list(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("stop"), str):
            return data | {"stop": [data["stop"]]}
        return data

    @property
    def fixed_seed(self) -> int | None:
        """None, or −1 as llama.cpp's clients say it: draw one."""
        return None if self.seed is None or self.seed == -1 else self.seed % 2**64

    def sampling(self, text: Text, num_prompt_tokens: int, *, default_max_tokens: int | None) -> SamplingParams:
        """`default_max_tokens` None: up to the model's length. Raises `InvalidRequest`."""
        self._check(text)
        room = text.max_model_len - num_prompt_tokens
        wanted = self.wanted_tokens
        max_tokens = min(room, wanted if wanted is not None else default_max_tokens or room)
        return SamplingParams(
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
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens, max_tokens),
            ignore_eos=self.ignore_eos,
        )

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError

    def _check(self, text: Text) -> None:
        if len(self.stop) > MAX_STOP:
            raise InvalidRequest(f"too many stop strings: {len(self.stop)} > {MAX_STOP} maximum", param="stop")
        for token_id in self.logit_bias:
            if not 0 <= token_id < text.num_vocab_tokens:
                raise InvalidRequest(
                    f"logit_bias names token {token_id}; the vocabulary is 0 to {text.num_vocab_tokens - 1}",
                    param="logit_bias",
                )


class TextPart(Body):
    type: str
    text: str | None = None


class Message(Body):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[object] = []

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: object) -> object:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def _plain(content: str | list[TextPart] | None) -> str | list[dict[str, object]] | None:
    return [part.model_dump(exclude_none=True) for part in content] if isinstance(content, list) else content


class ChatBody(SamplingBody):
    """POST /v1/chat/completions"""

    messages: list[Message]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    tools: list[object] = []
    tool_choice: object = None
    functions: list[object] = []
    response_format: dict[str, object] = {"type": "text"}
    modalities: list[str] = ["text"]

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def chat_messages(self) -> list[ChatMessage]:
        """Raises for what cannot be enforced or read: nothing a client asked for is dropped silently."""
        if (self.tools and self.tool_choice != "none") or self.functions:
            raise Unsupported("tools are not supported yet", param="tools" if self.tools else "functions")
        if self.response_format.get("type") != "text":
            raise Unsupported("only response_format {'type': 'text'} is supported yet", param="response_format")
        if self.modalities != ["text"]:
            raise Unsupported("this model answers in text only", param="modalities")
        return [ChatMessage(m.role, _plain(m.content), m.name) for m in self.messages]


class CompletionBody(SamplingBody):
    """POST /v1/completions"""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(union_mode="left_to_right")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int = 1
    echo: bool = False
    suffix: Literal[""] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt, as text or as token ids."""
        if self.best_of > self.n:
            raise Unsupported(f"best_of {self.best_of} > n {self.n} is not supported", param="best_of")
        if self.echo:
            raise Unsupported("echo is not supported", param="echo")
        if not isinstance(self.prompt, list):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt is empty", param="prompt")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast(list[str | list[int]], self.prompt)
