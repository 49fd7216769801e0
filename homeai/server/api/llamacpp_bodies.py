"""Request bodies of llama-server's own API: /completion, /infill, and what prepares prompts for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final, cast

import msgspec
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import MAX_ENTRIES, Body, Integer, Refused
from homeai.server.api.fields import INT32_MAX, MAX_BIASED, MAX_PROMPTS, MAX_TOKEN_IDS, MaxTokens, Name
from homeai.server.api.openai_bodies import IGNORED, SamplingBody
from homeai.server.ask import Ask
from homeai.server.infill import Gap, SourceFile

NEUTRAL: Final[Mapping[str, Mapping[str, float]]] = {  # what switches each sampler off
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
INFILL: Final = "infill"
NEVER: Final = -100.0
MAX_BIASED_TEXTS: Final = 1000
INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
LETTERS: Final = {  # llama-server also takes samplers as a text of letters
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": INFILL,
    "a": "adaptive_p",
}


def _no_adapters(lora: list[object]) -> list[object]:
    if lora:
        raise Unsupported("lora is not supported: this server has no adapters", param="lora")
    return lora


def _spelled_out(samplers: object) -> object:
    if not isinstance(samplers, str):
        return samplers
    if unknown := set(samplers) - LETTERS.keys():
        raise InvalidRequest(f"samplers has letters that mean nothing: {''.join(sorted(unknown))}", param="samplers")
    return [LETTERS[letter] for letter in samplers]


def _biases(body: object) -> object:
    """`logit_bias` as a list of pairs, false for never, and with texts in the place of token ids: told apart here."""
    if not isinstance(body, dict):
        return body
    given = body.get("logit_bias", {})
    if not isinstance(given, dict | list):
        return body
    if len(given) > MAX_BIASED:
        raise InvalidRequest(
            f"logit_bias names too many tokens: {len(given)} > {MAX_BIASED} maximum", param="logit_bias"
        )
    pairs = list(given.items()) if isinstance(given, dict) else given
    ids: dict[int, object] = {}
    texts: dict[str, object] = {}
    for index, pair in enumerate(pairs):
        match pair:
            case [int(token_id), bias] if not isinstance(token_id, bool):
                ids[token_id] = NEVER if bias is False else bias
            case [str(token_id), bias] if INTEGER.fullmatch(token_id):
                ids[int(token_id)] = NEVER if bias is False else bias
            case [str(text), bias] if len(texts) < MAX_BIASED_TEXTS:
                texts[text] = NEVER if bias is False else bias
            case [str(), _]:
                raise InvalidRequest(
                    f"logit_bias names too many texts: more than {MAX_BIASED_TEXTS} maximum; name their tokens",
                    param="logit_bias",
                )
            case _:
                raise InvalidRequest(
                    f"logit_bias[{index}]: a pair is needed: a token id or a text, and a number or false",
                    param="logit_bias",
                )
    return body | {"logit_bias": ids, "logit_bias_of_texts": texts}


def _prompt_string(prompt: object) -> object:
    """llama-server's {"prompt_string", "multimodal_data"} is its text, as long as there is nothing else."""
    if not isinstance(prompt, dict) or not isinstance(prompt.get("prompt_string"), str):
        return prompt
    if prompt.get("multimodal_data"):
        raise Unsupported("multimodal_data is not supported; this model reads text", param="prompt.multimodal_data")
    return prompt["prompt_string"]


def _kind_of_prompt(value: object) -> str:
    """An array with a number in it is one prompt; any other is many."""
    if not isinstance(value, list):
        return "a text"
    return "one mixed" if any(isinstance(part, int | float) for part in value) else "many prompts"


def _kind_of_part(value: object) -> str:
    return "a text" if isinstance(value, str) else "a token id"


def _kind_of_one(value: object) -> str:
    return "one mixed" if isinstance(value, list) else "a text"


BiasValue = Annotated[float, Field(ge=-100, le=100)]
Part = Annotated[
    Annotated[str, Tag("a text")] | Annotated[int, Field(ge=0), Tag("a token id")], Discriminator(_kind_of_part)
]
Mixed = Annotated[list[Part], Field(fail_fast=True, max_length=MAX_TOKEN_IDS)]
OnePrompt = Annotated[Annotated[str, Tag("a text")] | Annotated[Mixed, Tag("one mixed")], Discriminator(_kind_of_one)]
Prompt = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[Mixed, Tag("one mixed")]
    | Annotated[list[OnePrompt], Field(fail_fast=True, max_length=MAX_PROMPTS), Tag("many prompts")],
    Discriminator(_kind_of_prompt),
    BeforeValidator(_prompt_string),
]


class NativeBody(SamplingBody):
    """What /completion and /infill share."""

    ignored: ClassVar[frozenset[str]] = IGNORED | {"min_keep", "n_cache_reuse"}

    max_completion_tokens: MaxTokens | None = None
    n_cmpl: Annotated[Integer, Field(ge=1)] | None = None
    logit_bias_of_texts: SkipJsonSchema[dict[str, BiasValue]] = Field(default_factory=dict)  # of logit_bias
    n_indent: Annotated[Integer, Field(ge=0, le=INT32_MAX)] = 0
    return_tokens: bool = False
    samplers: (
        Annotated[
            list[Name],
            Field(fail_fast=True, max_length=64),
            BeforeValidator(_spelled_out, json_schema_input_type=str | list[str]),
        ]
        | None
    ) = None
    lora: Annotated[list[object], Field(fail_fast=True, max_length=MAX_ENTRIES), AfterValidator(_no_adapters)] = Field(
        default_factory=list
    )
    post_sampling_probs: Refused = None

    split_biases = model_validator(mode="before")(_biases)

    @property
    def wanted_tokens(self) -> int | None:
        given = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((count for count in given if count is not None), None)

    def ask(self) -> Ask:
        ask = super().ask()
        return replace(ask, n=self.n_cmpl or self.n, min_indent=self.n_indent, sampling=self._only_wanted(ask.sampling))

    def notes(self) -> list[str]:
        notes = [note for note in super().notes() if not note.startswith("samplers ")]
        others = [name for name in self.samplers or () if name not in NEUTRAL]
        return [*notes, f"not done, of samplers: {', '.join(others)}"] if others else notes

    def _only_wanted(self, sampling: SamplingParams) -> SamplingParams:
        """`samplers` names those that are used; their order here is always the same.

        llama-server's "infill" leaves little but the likeliest token: that one is taken.
        """
        if self.samplers is None:
            return sampling
        unused = [neutral for name, neutral in NEUTRAL.items() if name not in self.samplers]
        values = {name: value for neutral in unused for name, value in neutral.items()}
        if INFILL in self.samplers:
            values["temperature"] = 0.0
        return msgspec.structs.replace(sampling, **values)


class CompletionBody(NativeBody):
    """POST /completion. A text's control tokens count: whoever calls this has made the prompt from a template."""

    prompt: Prompt

    def prompts(self) -> list[Sequence[str | int]]:
        """Each prompt as the texts and token ids it is put together from."""
        if not isinstance(self.prompt, list):
            return [[self.prompt]]
        if not self.prompt:
            raise InvalidRequest("prompt is empty", param="prompt")
        if any(isinstance(part, int) for part in self.prompt):
            return [cast(list[str | int], self.prompt)]
        return [
            [prompt] if isinstance(prompt, str) else prompt for prompt in cast(list[str | list[str | int]], self.prompt)
        ]


class ExtraFile(Body):
    text: str
    filename: Annotated[str, Field(max_length=4096)] | None = None


class InfillBody(NativeBody):
    """POST /infill"""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Field(fail_fast=True, max_length=MAX_ENTRIES)] = Field(default_factory=list)
    prompt: str = ""

    def gap(self) -> Gap:
        files = [SourceFile(extra.filename or "tmp", extra.text) for extra in self.input_extra]
        return Gap(self.input_prefix, self.input_suffix, self.prompt, files)
