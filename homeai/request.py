"""One generation as the scheduler and the runner see it: integers, limits, progress.

No text lives here. `Request` is an identity with exactly one writer per field group: the scheduler
writes status and counts, the runner's buffers are its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec


class RequestStatus(enum.IntEnum):
    """Ordered: everything from FINISHED on is over."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


class FinishReason(enum.StrEnum):
    """Why a request ended. Every accepted request ends with exactly one of these."""

    STOP = "stop"  # an end token, or a stop string found by the front end
    LENGTH = "length"  # max_tokens, or the model's length
    ABORT = "abort"  # the client left, or asked
    TIMEOUT = "timeout"  # waited longer than its class allows
    ERROR = "error"  # the engine failed


class WaitReason(enum.StrEnum):
    """Why a request is not in the batch. One list, shown everywhere."""

    TOKEN_BUDGET = "token_budget"
    SEQUENCE_SLOT = "sequence_slot"
    KV_SPACE = "kv_space"
    CLASS_CAP = "class_cap"
    SOURCE_CAP = "source_cap"
    SHARED_PREFIX = "shared_prefix"  # another request computes what this one begins with
    SINGLE_MODE = "single_mode"
    BATCH_MODE = "batch_mode"  # static and window: the next batch is formed when this one has ended
    NOT_RESIDENT = "not_resident"
    PAUSED = "paused"  # its class, by the owner


class Mode(enum.StrEnum):
    """How a step chooses its batch."""

    CONTINUOUS = "continuous"
    SINGLE = "single"
    STATIC = "static"  # a fixed batch runs to its end (baseline)
    WINDOW = "window"  # collect for a while, then run that batch to its end (baseline)


class Grammar(msgspec.Struct, frozen=True):
    """What an output's text must follow: a grammar of llguidance, as its JSON or Lark text.

    Without `triggers` from the first token on. With them the output is free until it ends in one of these texts;
    from there on it follows the grammar, whose own text begins with the trigger.
    """

    source: str
    triggers: tuple[str, ...] = ()


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw the next token. Defaults are the peers' (llama-server, Ollama).

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, `xtc_probability` 0, `repeat_penalty` 1
    and `dry_multiplier` 0 switch a filter off.
    `logprobs` is the number of alternatives to report per token; None reports nothing, 0 only the chosen one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # tokens that are looked at; 0 off, -1 everything
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # window of the three penalties, in tokens; 0 off, -1 everything
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0  # already resolved: the front end draws one when the client sent none
    logprobs: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    grammar: Grammar | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """log P(token) under the model's own distribution (before penalties and temperature)."""

    token_id: int
    logprob: float


class SampledToken(msgspec.Struct, frozen=True, array_like=True):
    """One drawn token; `logprob` and `top_logprobs` only when the request asked for them."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


def longest_request(max_model_len: int | None, n_ctx_train: int, num_kv_cells: int) -> int:
    """Tokens of one request: as configured, else as trained (0: the file does not say), never beyond the cache.

    Front end and engine read the same file in two processes and must come to the same number.
    """
    return min(max_model_len or n_ctx_train or num_kv_cells, num_kv_cells)


@dataclass(eq=False, slots=True)
class Request:
    """A live request inside the engine. `num_computed_tokens` chases `num_tokens`; there are no phases."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    source: str = "default"
    fairness_class: str = "interactive"
    arrival_at: float = 0.0
    cache_prompt: bool = True  # may use what others computed, and leave its own
    is_pin: bool = False  # its sequence stays for good

    # written by the scheduler only
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    output_token_ids: list[int] = field(default_factory=list)
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_charged_tokens: int = 0  # high-water mark: recomputation is free
    num_cached_tokens: int = 0  # of the prompt, found computed when it came, and then at its first admission
    num_recomputed_tokens: int = 0
    num_moved_bytes: int = 0  # to host memory and back
    is_pinned: bool = False  # it was a pin, and stays
    num_preemptions: int = 0
    admitted_at: float | None = None  # first time in a batch
    joined_at: float = 0.0  # last time
    first_token_at: float | None = None
    preempted_at: float | None = None
    parked_s: float = 0.0
    prefill_parked_s: float = 0.0  # of them, those before its first token
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """With output tokens it comes out of an engine that is gone, where it was charged for what it had."""
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.num_output_tokens = len(self.output_token_ids)
        self.num_charged_tokens = self.num_tokens if self.output_token_ids else 0

    def token_ids(self, start: int, end: int) -> list[int]:
        """Tokens [start, end) of prompt and output together."""
        num_prompt = self.num_prompt_tokens
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : end - num_prompt]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - num_prompt]

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """More than the last token is missing: this step computes without (necessarily) drawing one."""
        return self.num_uncomputed_tokens > 1 or self.num_output_tokens == 0

    @property
    def is_finished(self) -> bool:
        return self.status >= RequestStatus.FINISHED
