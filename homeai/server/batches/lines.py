"""The lines of an input file: checked, each, before any of them is run. Pure but for reading.

A line is {"custom_id": …, "method": "POST", "url": the batch's endpoint, "body": {…}}. What is in the
body its endpoint reads when the line is run; what it refuses then is the line's answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from homeai.server.api.body import LONE_SURROGATE
from homeai.server.batches.records import LineError, Place

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_LINES: Final = 50_000  # OpenAI's
MAX_ERRORS: Final = 100  # told; more of them would be of no use
MAX_ID_LENGTH: Final = 512
BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    custom_id: str
    url: str
    body: dict[str, object]

    @property
    def content(self) -> bytes:
        """The body as it is sent: its endpoint judges what is in it."""
        return json.dumps(self.body).encode()


@dataclass(slots=True)
class Checked:
    """Usable when it has no errors."""

    places: list[Place] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)


class _Unusable(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def check(lines: Iterable[bytes], endpoint: str) -> Checked:
    """`lines` with their ends, as a file opened for bytes gives them. Empty ones are passed over."""
    checked = Checked()
    first_with: dict[str, int] = {}
    for number, start, raw in _numbered(lines):
        if len(checked.places) == MAX_LINES:
            message = f"the file has more than {MAX_LINES} requests, the most of one batch"
            checked.errors.insert(0, LineError("too_many_requests", message, number))
            break
        try:
            line = _read(raw, endpoint)
            first = first_with.setdefault(line.custom_id, number)
            if first != number:
                raise _Unusable(
                    "duplicate_custom_id", f"custom_id {line.custom_id!r} is that of line {first}", "custom_id"
                )
            checked.places.append(Place(line.custom_id, start, len(raw)))
        except _Unusable as error:
            checked.errors.append(LineError(error.code, error.message, number, error.param))
            if len(checked.errors) == MAX_ERRORS:
                break
    if not checked.places and not checked.errors:
        checked.errors.append(LineError("empty_file", "the file has no requests"))
    return checked


def read(raw: bytes, endpoint: str) -> Line | None:
    """A line that was checked; None: it is not that any more."""
    try:
        return _read(raw, endpoint)
    except _Unusable:
        return None


def _numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, first byte, bytes) of those that are not empty."""
    start = 0
    for number, raw in enumerate(lines, 1):
        skipped = len(BOM) if number == 1 and raw.startswith(BOM) else 0
        if raw[skipped:].strip():
            yield number, start + skipped, raw[skipped:]
        start += len(raw)


def _read(raw: bytes, endpoint: str) -> Line:
    try:
        fields: object = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise _Unusable("invalid_json_line", f"the line is not JSON in UTF-8: {error}") from None
    if not isinstance(fields, dict):
        raise _Unusable("invalid_json_line", "the line is not a JSON object")
    custom_id = _text(fields, "custom_id")
    if not 1 <= len(custom_id) <= MAX_ID_LENGTH:
        message = f"custom_id has {len(custom_id)} characters; allowed are 1 to {MAX_ID_LENGTH}"
        raise _Unusable("invalid_custom_id", message, "custom_id")
    if LONE_SURROGATE.search(custom_id):
        raise _Unusable("invalid_custom_id", "custom_id has half of a character (a lone surrogate)", "custom_id")
    if (method := _text(fields, "method")) != "POST":
        raise _Unusable("invalid_method", f"method is {method!r}; only 'POST' is possible", "method")
    if (url := _text(fields, "url")) != endpoint:
        raise _Unusable("invalid_url", f"url is {url!r}; the batch's endpoint is {endpoint!r}", "url")
    body = fields.get("body")
    if not isinstance(body, dict):
        raise _Unusable("missing_body" if body is None else "invalid_body", "body: an object is needed", "body")
    return Line(custom_id, url, body)


def _text(fields: dict[str, object], name: str) -> str:
    text = fields.get(name)
    if text is None:
        raise _Unusable(f"missing_{name}", f"{name} is missing", name)
    if not isinstance(text, str):
        raise _Unusable(f"invalid_{name}", f"{name}: a text is needed", name)
    return text
