"""From a reply to the client: whole, or as a stream. The words are a dialect's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import RequestError
from homeai.server.answers import JSON, EventStream, unless_gone
from homeai.server.arrival import Arrival
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result

Value = dict[str, object]

MAX_NOTES_LENGTH = 2000  # of the header: servers in between refuse long ones
MIN_PING_S = 0.1  # a client may ask for more of them, but not for all that we can send


class Dialect(Protocol):
    """One answer in the words of one API."""

    content_type: str

    @property
    def ping(self) -> bytes | None:
        """What is sent into a long silence, each time; None: nothing may be."""
        ...

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """All that one wake-up brought, as it goes out in one write."""
        ...

    def end(self) -> bytes:
        """What follows the last piece."""
        ...

    def error(self, error: RequestError) -> bytes:
        """After the first byte an error can only be a part of the stream."""
        ...

    def whole(self, results: Sequence[Result]) -> object:
        """The answer of a client that does not stream."""
        ...


async def respond(
    request: Request, arrival: Arrival, reply: Reply, dialect: Dialect, *, stream: bool, ping_s: float = 0.0
) -> Response:
    """Errors that come before the first token still get their real status. `ping_s` 0 or less: no pings."""
    pause_s = max(ping_s, MIN_PING_S) if ping_s > 0 else None
    try:
        if stream:
            await unless_gone(request.receive, reply.wait(pause_s))
        else:
            results = await unless_gone(request.receive, collect(reply))
    except BaseException:
        reply.close()
        raise
    if stream:
        return noted(EventStream(_chunks(reply, dialect, pause_s), dialect.content_type), arrival)
    return noted(JSON(dialect.whole(results)), arrival)


def noted(response: Response, arrival: Arrival) -> Response:
    """With what was done that the client did not ask for. Notes repeat its words: none of them ends the header."""
    if arrival.notes:
        text = "; ".join(dict.fromkeys(arrival.notes))
        if len(text) > MAX_NOTES_LENGTH:
            text = f"{text[: MAX_NOTES_LENGTH - 3]}..."
        response.headers["X-HomeAI-Notes"] = "".join(char if " " <= char <= "~" else "?" for char in text)
    return response


async def collect(reply: Reply) -> list[Result]:
    """Every choice to its end."""
    results = [Result() for _ in reply.generations]
    while not reply.is_over:
        await reply.wait()
        for piece in reply.read():
            results[piece.choice].add(piece)
    return results


async def _chunks(reply: Reply, dialect: Dialect, pause_s: float | None) -> AsyncGenerator[bytes, None]:
    try:
        while not reply.is_over:
            if await reply.wait(pause_s):
                yield dialect.pieces(reply.read())
            else:
                yield dialect.ping or b""
        yield dialect.end()
    except RequestError as error:
        yield dialect.error(error)
    finally:
        reply.close()
