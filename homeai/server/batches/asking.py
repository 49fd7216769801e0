"""One line, asked of the app as a client would ask it, and what of the answer goes into the output.

The request passes the same guards, is read by the same body and answered by the same dialect; only who asks is said
by the batch, and no socket is involved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from homeai.server.batches.lines import Line
from homeai.server.batches.records import LineState, Usage
from homeai.server.sources import OnBehalf

RETRIED: Final = (429, 503)  # busy, or not there: the line is not to blame
STREAM_REFUSED: Final = msgspec.json.encode(
    {
        "error": {
            "message": "stream: a batch's answers are whole; leave it out",
            "type": "invalid_request_error",
            "param": "stream",
            "code": "unsupported_value",
        }
    }
)


class Answer(msgspec.Struct, frozen=True):
    """As it came over HTTP. `body` is JSON."""

    status: int
    body: bytes
    request_id: str
    notes: str | None = None  # X-HomeAI-Notes
    retry_after_s: float | None = None

    @property
    def is_to_be_retried(self) -> bool:
        return self.status in RETRIED

    @property
    def state(self) -> LineState:
        return LineState.COMPLETED if self.status == 200 else LineState.FAILED

    @property
    def usage(self) -> Usage:
        return _usage(self.body) if self.status == 200 else Usage()


Ask = Callable[[str, Line, OnBehalf], Awaitable[Answer]]


def asker(app: ASGIApp) -> Ask:
    """Asks `app`: (the line's id, the line, for whom) → its answer."""

    async def ask(line_id: str, line: Line, on_behalf: OnBehalf) -> Answer:
        import httpx  # with the first line, not with the daemon

        if line.body.get("stream"):
            return Answer(400, STREAM_REFUSED, line_id)

        async def as_batch(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": {"on_behalf": on_behalf}}, receive, send)

        transport = httpx.ASGITransport(as_batch, raise_app_exceptions=False)
        headers = {"content-type": "application/json", "x-request-id": line_id}
        request = httpx.Request("POST", f"http://localhost{line.url}", headers=headers, content=line.content)
        response = await transport.handle_async_request(request)
        await response.aread()
        retry_ms = response.headers.get("retry-after-ms")
        return Answer(
            response.status_code,
            response.content,
            line_id,
            response.headers.get("x-homeai-notes"),
            float(retry_ms) / 1e3 if retry_ms else None,
        )

    return ask


def written(line_id: str, custom_id: str, answer: Answer) -> bytes:
    """A line of the output or error file, in OpenAI's shape; with `notes` where the answer came with some."""
    response: dict[str, object] = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": msgspec.Raw(answer.body),
    }
    if answer.notes is not None:
        response["notes"] = answer.notes
    return msgspec.json.encode({"id": line_id, "custom_id": custom_id, "response": response, "error": None})


def unread(line_id: str, custom_id: str, message: str) -> bytes:
    """A line of the error file that could not be asked at all."""
    error = {"code": "input_file_unreadable", "message": message}
    return msgspec.json.encode({"id": line_id, "custom_id": custom_id, "response": None, "error": error})


class _InputDetails(msgspec.Struct):
    cached_tokens: int = 0


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """Chat's names and those of responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Counted(msgspec.Struct):
    usage: _Usage | None = None


def _usage(body: bytes) -> Usage:
    try:
        usage = msgspec.json.decode(body, type=_Counted).usage or _Usage()
    except msgspec.MsgspecError:
        return Usage()
    inputs = usage.prompt_tokens_details or usage.input_tokens_details or _InputDetails()
    outputs = usage.completion_tokens_details or usage.output_tokens_details or _OutputDetails()
    return Usage(
        usage.prompt_tokens or usage.input_tokens,
        inputs.cached_tokens,
        usage.completion_tokens or usage.output_tokens,
        outputs.reasoning_tokens,
    )
