"""HTTP answers that all API families build on: JSON, errors, streams, and noticing that a client left."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from homeai.errors import RequestError
from homeai.server.shapes import error_answer

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects first (`ClientGone`)."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class JSON(Response):
    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return msgspec.json.encode(content)


class EventStream(Response):
    """Sends what `chunks` yields, each at once; closes `chunks` as soon as the client is gone.

    `chunks` is entered before anything is sent, so that closing it always runs its `finally`.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], content_type: str = "text/event-stream") -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type=content_type)
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientGone:
            return
        finally:
            await self._chunks.aclose()

    async def _send(self, send: Send) -> None:
        first = await anext(self._chunks, b"")
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_headers(error: RequestError) -> dict[str, str]:
    """SDKs retry by themselves; say when that helps, and when it cannot."""
    headers = {} if error.retryable else {"x-should-retry": "false"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
        headers["retry-after-ms"] = f"{error.retry_after_s * 1000:.0f}"
    return headers


def error_response(error: RequestError, scope: Scope) -> JSON:
    """In the shape of the API family that `scope` asked."""
    status, body = error_answer(error, scope)
    return JSON(body, status_code=status, headers=error_headers(error))
