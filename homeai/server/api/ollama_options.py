"""`options`, Ollama's place for how to draw, and what has no effect here: said to the client, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, ConfigDict, Field

from homeai.request import SamplingParams
from homeai.server.api.body import Body, Integer
from homeai.server.api.fields import INT32_MAX, Penalty, Repetition, Share, Stop
from homeai.server.ask import Ask

LOADED_ONCE: Final = "the model is loaded once, as this server was started"
NOT_DONE: Final = "this way of sampling is not done"
OPTIONS_WITHOUT_EFFECT: Final = {
    "num_ctx": "the context is as long as this server was started with",
    **dict.fromkeys(("num_batch", "num_gpu", "main_gpu", "num_thread", "num_gqa", "numa", "low_vram"), LOADED_ONCE),
    **dict.fromkeys(("use_mmap", "use_mlock", "f16_kv", "logits_all", "vocab_only", "embedding_only"), LOADED_ONCE),
    **dict.fromkeys(("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline"), NOT_DONE),
    "draft_num_predict": "this server decides how far it guesses ahead",
    "num_keep": "nothing of a conversation is ever dropped",
}
DEFAULTS: Final = SamplingParams()


def _without_nulls(value: object) -> object:
    return {key: entry for key, entry in value.items() if entry is not None} if isinstance(value, dict) else value


def _off_if_zero(penalty: object) -> object:
    """litellm sends OpenAI's frequency penalty here, whose 0 is off."""
    return 1.0 if penalty == 0 and not isinstance(penalty, bool) else penalty


class OllamaBody(Body):
    """Of the fields in `ignored` those that came are told to the client."""

    model_config = ConfigDict(extra="allow")

    without_effect: ClassVar[Mapping[str, str]] = {}  # and why
    ignored: ClassVar[frozenset[str]] = frozenset()

    @property
    def notes(self) -> list[str]:
        """What the client asked for and does not get, though its answer is as good."""
        given = self.model_extra or {}
        return [
            f"{name} has no effect: {why}" for name, why in self.without_effect.items() if given.get(name) is not None
        ]


class DrawingOptions(OllamaBody):
    """`options`: how to draw."""

    without_effect: ClassVar = OPTIONS_WITHOUT_EFFECT
    ignored: ClassVar = frozenset(OPTIONS_WITHOUT_EFFECT)

    temperature: Annotated[float, Field(ge=0, le=2)] = DEFAULTS.temperature
    top_k: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = DEFAULTS.top_k
    top_p: Annotated[float, Field(ge=0, le=1)] = DEFAULTS.top_p
    min_p: Annotated[float, Field(ge=0, le=1)] = DEFAULTS.min_p
    typical_p: Share = DEFAULTS.typical_p
    repeat_last_n: Annotated[Integer, Field(ge=-1, le=INT32_MAX)] = DEFAULTS.repeat_last_n
    repeat_penalty: Annotated[Repetition, BeforeValidator(_off_if_zero)] = DEFAULTS.repeat_penalty
    presence_penalty: Penalty = DEFAULTS.presence_penalty
    frequency_penalty: Penalty = DEFAULTS.frequency_penalty
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stop = Field(default_factory=list)
    num_predict: Annotated[Integer, Field(ge=-2)] = -1  # below 0: up to the model's length

    def ask(self, num_logprobs: int | None = None, keep_alive_s: float | None = None) -> Ask:
        return Ask(
            sampling=SamplingParams(
                temperature=self.temperature,
                top_k=max(self.top_k, 0),
                top_p=self.top_p,
                min_p=self.min_p,
                typical_p=self.typical_p,
                repeat_penalty=self.repeat_penalty,
                repeat_last_n=self.repeat_last_n,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logprobs=num_logprobs,
            ),
            max_tokens=None if self.num_predict < 0 else self.num_predict,
            seed=None if self.seed is None or self.seed == -1 else self.seed % 2**64,
            stop=self.stop,
            keep_alive_s=keep_alive_s,
        )


Options = Annotated[DrawingOptions, BeforeValidator(_without_nulls)]
