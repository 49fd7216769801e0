"""Types of single fields that several bodies have, of OpenAI's API and of others."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import MAX_ENTRIES, Integer
from homeai.server.keep_alive import keep_alive_s
from homeai.server.turns import ROLES

MAX_LOGPROBS: Final = 20
MAX_STOP: Final = 64
MAX_BIASED: Final = 65536
MAX_TOKEN_IDS: Final = 1_000_000  # of one list; about what fits into a body anyway
MAX_PROMPTS: Final = 256  # the most that scheduler.max_num_seqs can be
INT32_MAX: Final = 2**31 - 1


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _not_too_many(bias: object) -> object:
    """First of all: pydantic would look at a million entries one by one, and collect what is wrong with each."""
    if isinstance(bias, dict) and len(bias) > MAX_BIASED:
        raise InvalidRequest(
            f"logit_bias names too many tokens: {len(bias)} > {MAX_BIASED} maximum", param="logit_bias"
        )
    return bias


def _without_speech(modalities: list[str]) -> list[str]:
    if modalities != ["text"]:
        raise Unsupported("this model answers in text only", param="modalities")
    return modalities


def _only_off(value: object, info: ValidationInfo) -> object:
    if value:
        raise Unsupported(f"{info.field_name} {value} is not supported; only 0 (off) is", param=info.field_name)
    return value


Count = Annotated[Integer, Field(ge=0)]
MaxTokens = Annotated[Integer, Field(ge=-1)]  # -1, as llama-server's clients say it: up to the model's length
Penalty = Annotated[float, Field(ge=-2, le=2)]
Repetition = Annotated[float, Field(ge=0.01, le=10)]  # nearer to 0, a penalised logit would overflow
NumLogprobs = Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)]
Name = Annotated[str, Field(max_length=256)]  # errors repeat it
Role = Annotated[Name, Field(json_schema_extra={"enum": list(ROLES)})]
Stop = Annotated[
    list[str],
    Field(fail_fast=True, max_length=MAX_STOP),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]
Texts = Annotated[list[str], Field(fail_fast=True, max_length=MAX_ENTRIES)]
Modalities = Annotated[Texts, AfterValidator(_without_speech)]
Off = Annotated[float, AfterValidator(_only_off), Field(json_schema_extra={"enum": [0]})]
Share = Annotated[float, Field(ge=0, le=1)]
Breakers = Annotated[list[Annotated[str, Field(max_length=64)]], Field(fail_fast=True, max_length=64)]
Bias = Annotated[
    dict[Annotated[int, Field(strict=False)], Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_not_too_many),
]
KeepAlive = Annotated[
    float, Field(allow_inf_nan=True), BeforeValidator(keep_alive_s, json_schema_input_type=float | str)
]
