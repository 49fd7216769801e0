"""Request bodies of /v1/chat/completions and /v1/completions, with the extensions of llama-server and vLLM."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, cast

from pydantic import Discriminator, Field, Tag

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import MAX_ENTRIES, Body, Integer, Refused
from homeai.server.api.fields import (
    INT32_MAX,
    MAX_PROMPTS,
    MAX_TOKEN_IDS,
    Bias,
    Breakers,
    Count,
    KeepAlive,
    MaxTokens,
    Modalities,
    Name,
    NumLogprobs,
    Off,
    Penalty,
    Repetition,
    Share,
    Stop,
    Texts,
)
from homeai.server.api.openai_deltas import Thoughts
from homeai.server.api.openai_formats import answer_format
from homeai.server.api.openai_messages import Message
from homeai.server.api.openai_reasoning import Effort, ReasoningFormat, ReasoningWish, thinking
from homeai.server.api.openai_tools import Functions, Toolbox, Tools, toolbox
from homeai.server.ask import Ask
from homeai.server.conversation import AnswerFormat, Chat

IGNORED: Final = frozenset(
    (
        *("store", "metadata", "service_tier", "safety_identifier", "verbosity", "prediction", "moderation"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
        *("include_obfuscation", "id_slot", "n_keep", "n_discard", "t_max_prompt_ms", "backend_sampling"),
    )
)
WITHOUT_EFFECT: Final = {  # and said so: the client may count on it
    "num_ctx": "the context is as long as this server was started with",
    "mirostat": "mirostat sampling is not done",
    "mirostat_tau": "mirostat sampling is not done",
    "mirostat_eta": "mirostat sampling is not done",
    "samplers": "samplers are applied in this server's own order",
    "thinking_budget_tokens": "only 0 and -1 change anything",
}


def _kind_of_prompt(value: object) -> str:
    if not isinstance(value, list):
        return "a text"
    first = value[0] if value else ""
    if isinstance(first, str):
        return "many texts"
    return "many id lists" if isinstance(first, list) else "token ids"


# One mistake is enough: a million of them, each reported, would keep everybody waiting for a minute.
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, max_length=MAX_TOKEN_IDS)]
Prompt = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS), Tag("many texts")]
    | Annotated[TokenIds, Tag("token ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS), Tag("many id lists")],
    Discriminator(_kind_of_prompt),
]


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: the usage so far with every chunk


class SamplingBody(Body):
    """What both endpoints share."""

    default_max_tokens: ClassVar[int | None] = None  # up to the model's length
    ignored: ClassVar[frozenset[str]] = IGNORED

    model: Name | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[Integer, Field(ge=1)] = 1
    max_tokens: MaxTokens | None = None
    n_predict: Annotated[Integer, Field(ge=-2)] | None = None  # llama-server's name for it
    min_tokens: Count = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = SamplingParams().temperature
    top_p: Share = SamplingParams().top_p
    top_k: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = SamplingParams().top_k
    min_p: Share = SamplingParams().min_p
    typical_p: Share | None = None
    typ_p: Share | None = None  # llama-server's other name for it
    xtc_probability: Share = SamplingParams().xtc_probability
    xtc_threshold: Share = SamplingParams().xtc_threshold
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] = SamplingParams().dry_multiplier
    dry_base: Annotated[float, Field(ge=0, le=100)] = SamplingParams().dry_base
    dry_allowed_length: Annotated[Integer, Field(ge=0, le=INT32_MAX)] = SamplingParams().dry_allowed_length
    dry_penalty_last_n: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = SamplingParams().dry_penalty_last_n
    dry_sequence_breakers: Breakers = Field(default_factory=lambda: list(SamplingParams().dry_sequence_breakers))
    dynatemp_range: Off = 0.0
    dynatemp_exponent: float = 1.0
    top_n_sigma: Annotated[float, Field(le=0)] = -1.0
    repeat_penalty: Repetition | None = None
    repetition_penalty: Repetition = 1.0  # vLLM's name for it
    repeat_last_n: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = SamplingParams().repeat_last_n
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Bias = Field(default_factory=dict)
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stop = Field(default_factory=list)
    ignore_eos: bool = False
    n_probs: NumLogprobs = 0  # llama-server's name for log-probabilities
    t_max_predict_ms: float = 0.0  # llama-server's: 0 or less is off
    cache_prompt: bool = True  # llama-server's: false computes all of the prompt
    user: str | None = None
    sse_ping_interval: float | None = None  # llama-server's: seconds, 0 or less is off
    timings_per_token: bool = False
    return_progress: bool = False
    response_fields: Texts = Field(default_factory=list)
    response_format: dict[str, object] | None = None
    grammar: str | None = None
    json_schema: object = None
    guided_json: Refused = None  # vLLM's names
    guided_regex: Refused = None
    guided_choice: Refused = None
    guided_grammar: Refused = None
    structured_outputs: Refused = None
    lora: Refused = None
    options: object = None  # Ollama's place for num_ctx
    num_ctx: object = None
    mirostat: object = None
    mirostat_tau: object = None
    mirostat_eta: object = None
    samplers: object = None
    keep_alive: KeepAlive | None = None
    thinking_budget_tokens: Integer | None = None

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
                typical_p=self._typical_p,
                xtc_probability=self.xtc_probability,
                xtc_threshold=self.xtc_threshold,
                dry_multiplier=self.dry_multiplier,
                dry_base=self.dry_base if self.dry_base >= 1 else SamplingParams().dry_base,  # as llama-server
                dry_allowed_length=self.dry_allowed_length,
                dry_penalty_last_n=self.dry_penalty_last_n,
                dry_sequence_breakers=tuple(self.dry_sequence_breakers),
                repeat_penalty=self.repeat_penalty or self.repetition_penalty,
                repeat_last_n=self.repeat_last_n,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=self.logit_bias,
                logprobs=self.num_logprobs,
                min_tokens=self.min_tokens,
                ignore_eos=self.ignore_eos,
            ),
            max_tokens=None if wanted is None or wanted < 0 else wanted,
            max_predict_s=self.t_max_predict_ms / 1e3 if self.t_max_predict_ms > 0 else None,
            seed=self.fixed_seed,
            stop=self.stop,
            n=self.n,
            cache_prompt=self.cache_prompt,
            keep_alive_s=self.keep_alive,
            user=self.user,
        )

    @property
    def _typical_p(self) -> float:
        given = (value for value in (self.typical_p, self.typ_p) if value is not None)
        return next(given, SamplingParams().typical_p)

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens if self.max_tokens is not None else self.n_predict

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives for each token; None: no log-probabilities at all."""
        return self.n_probs or None

    def answer_format(self) -> AnswerFormat | None:
        return answer_format(self.response_format, self.grammar, self.json_schema)

    def notes(self) -> list[str]:
        """What the client asked for and does not get, though its answer is as good."""
        wishes = {name: getattr(self, name) for name in WITHOUT_EFFECT}
        wishes |= self.options if isinstance(self.options, dict) else {}
        budget = self.thinking_budget_tokens
        if budget is None or budget <= 0:
            del wishes["thinking_budget_tokens"]
        given = [name for name in WITHOUT_EFFECT if wishes.get(name) is not None]
        return [f"{name} has no effect: {WITHOUT_EFFECT[name]}" for name in given]


class ChatBody(SamplingBody):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(fail_fast=True, max_length=MAX_ENTRIES, json_schema_extra={"minItems": 1})]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0
    tools: Tools | None = None
    tool_choice: object = None
    parallel_tool_calls: bool = True
    functions: Functions | None = None
    function_call: object = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningWish = ReasoningWish()
    reasoning_format: ReasoningFormat = "auto"
    include_reasoning: bool = True  # vLLM's, OpenRouter's
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict)
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: Modalities | None = None
    audio: Refused = None
    web_search_options: Refused = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else super().wanted_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else super().num_logprobs

    @property
    def is_legacy(self) -> bool:
        """The client knows functions, and no tools."""
        return bool(self.functions)

    @property
    def thoughts(self) -> Thoughts:
        if not self.include_reasoning or self.reasoning.exclude:
            return "hidden"
        return "inline" if self.reasoning_format == "none" else "apart"

    def chat(self) -> Chat:
        """Raises `InvalidRequest` for what cannot be read: nothing a client asked for is dropped silently."""
        box = self._toolbox()
        thinks, effort = thinking(
            self.reasoning_effort, self.reasoning, self.chat_template_kwargs, self.thinking_budget_tokens
        )
        return Chat(
            messages=[message.plain(f"messages[{index}]") for index, message in enumerate(self.messages)],
            tools=box.tools,
            tool_choice=box.choice,
            parallel_tool_calls=self.parallel_tool_calls and not self.is_legacy,
            answer_format=self.answer_format(),
            thinks=thinks,
            reasoning_effort=effort,
            continues=self._continues(),
            template_arguments=self.chat_template_kwargs,
        )

    def _toolbox(self) -> Toolbox:
        tools = toolbox(self.tools or (), self.tool_choice, kind="tools", choice_name="tool_choice")
        functions = toolbox(self.functions or (), self.function_call, kind="functions", choice_name="function_call")
        if tools.tools and functions.tools:
            raise InvalidRequest("tools and functions both declare what to call; send tools", param="functions")
        return functions if functions.tools else tools

    def _continues(self) -> bool | None:
        """vLLM's two fields. None: an assistant's last message is continued."""
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise Unsupported(
                "add_generation_prompt false is supported only with continue_final_message true",
                param="add_generation_prompt",
            )
        if self.continue_final_message is None:
            return False if self.add_generation_prompt else None
        return self.continue_final_message


class CompletionBody(SamplingBody):
    """POST /v1/completions"""

    default_max_tokens: ClassVar[int | None] = 16  # OpenAI's; a chat goes on to its natural end

    prompt: Prompt
    suffix: str | None = None  # what comes after the gap that the answer fills
    logprobs: NumLogprobs | None = None
    best_of: Integer = 1
    echo: Refused = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs if self.logprobs is not None else super().num_logprobs

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


class FimBody(CompletionBody):
    """POST /v1/fim/completions, Mistral's: the text between `prompt` and `suffix`."""

    default_max_tokens = None
