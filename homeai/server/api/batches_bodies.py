"""Request bodies, form fields and queries of /v1/files and /v1/batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, TypeVar

import msgspec
from pydantic import AfterValidator, Field

from homeai.errors import Unsupported
from homeai.server.api.body import Body, Integer, parse_body
from homeai.server.batches.batches import Order
from homeai.server.batches.records import INPUT

B = TypeVar("B", bound=Body)

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WINDOW: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
MAX_WINDOW_S: Final = 30 * 86_400


def _window_s(text: str) -> float:
    match = WINDOW.fullmatch(text)
    seconds = int(match[1]) * UNITS_S[match[2]] if match else 0
    if not 1 <= seconds <= MAX_WINDOW_S:
        raise ValueError(f"{text!r} is no time such as 24h, 90m or 7d, up to 30d")
    return seconds


def _window(text: str) -> str:
    _window_s(text)
    return text


def _purpose(text: str) -> str:
    if text != INPUT:
        raise Unsupported(f"purpose {text!r} is not supported: files are kept for batches, {INPUT!r}", param="purpose")
    return text


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Annotated[Integer, Field(ge=3600, le=2_592_000)]


class FileForm(Body):
    """POST /v1/files, beside the file itself"""

    ignored: ClassVar[frozenset[str]] = frozenset()

    purpose: Annotated[str, AfterValidator(_purpose)]
    expires_after: ExpiresAfter | None = None


class FilesQuery(Body):
    """GET /v1/files"""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class BatchBody(Body):
    """POST /v1/batches"""

    ignored: ClassVar[frozenset[str]] = frozenset()

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Annotated[str, AfterValidator(_window)]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None

    def order(self) -> Order:
        kept = self.output_expires_after
        return Order(
            input_file_id=self.input_file_id,
            endpoint=self.endpoint,
            completion_window=self.completion_window,
            window_s=_window_s(self.completion_window),
            metadata=self.metadata,
            outputs_kept_s=None if kept is None else float(kept.seconds),
        )


class BatchesQuery(Body):
    """GET /v1/batches"""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


def read_fields(fields: Mapping[str, object], model: type[B]) -> B:
    """Of a form or a query, where numbers are texts and `a[b]` is b of a. Raises `InvalidRequest` naming the field."""
    tree: dict[str, object] = {}
    for name, value in fields.items():
        outer, bracket, inner = name.partition("[")
        given = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 16 else value
        if not bracket:
            tree[name] = given
        elif isinstance(group := tree.setdefault(outer, {}), dict):
            group[inner.removesuffix("]")] = given
    return parse_body(msgspec.json.encode(tree), model)
