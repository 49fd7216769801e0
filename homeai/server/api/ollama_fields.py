"""Types of single fields that several bodies of Ollama's API have."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import MAX_ENTRIES
from homeai.server.embeddings import MAX_INPUTS

Effort = Literal["low", "medium", "high", "max"]
EFFORTS: Final[dict[str, str]] = {"low": "low", "medium": "medium", "high": "high", "max": "high"}
NO_IMAGES: Final = "are not supported; this model reads text"


def _think(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and value in EFFORTS):
        return value
    words = ", ".join(f'"{word}"' for word in EFFORTS)
    raise InvalidRequest(f"think: {value!r:.40} is neither true, false nor one of {words}", param="think")


def _format(value: object) -> object:
    if isinstance(value, dict) or value in ("", "json"):
        return value
    raise InvalidRequest(f'format: {value!r:.40} is neither "json" nor a JSON schema object', param="format")


def _no_images(images: list[object]) -> list[object]:
    if images:
        raise Unsupported(f"images {NO_IMAGES}", param="images")
    return images


def _kind_of_input(value: object) -> str:
    return "many texts" if isinstance(value, list) else "a text"


Inputs = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_INPUTS), Tag("many texts")],
    Discriminator(_kind_of_input),
]
NoImages = Annotated[
    list[object],
    Field(fail_fast=True, max_length=MAX_ENTRIES, json_schema_extra={"maxItems": 0}),
    AfterValidator(_no_images),
]
Think = Annotated[bool | str, BeforeValidator(_think, json_schema_input_type=bool | Effort)]
Format = Annotated[
    dict[str, object] | str,
    BeforeValidator(_format, json_schema_input_type=dict[str, object] | Literal["json", ""]),
]
