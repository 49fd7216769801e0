"""One client's connection: uvicorn's own protocol, with bounds on what a client may hold and keep waiting.

Bounded are the size of a request's head (431) and the time for it (408), the time for the rest of a body that is
answered already, and the time in which nothing of an answer is taken. Whoever oversteps a bound loses its connection,
and with it its request; nobody else notices. Size and time of a body that is read are `guards.BodyLimit`'s.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import ClassVar, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from homeai.errors import HeadersTooLarge, RequestError, RequestTimeout
from homeai.server.shapes import openai_error

MAX_HEADERS: Final = 128
LINGER_S: Final = 2.0
MIN_TAKEN_BYTES: Final = 16 * 1024  # of an answer, in the time that a reader has: the least that one which lives takes

log = logging.getLogger("homeai.server")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_header_bytes: int = 32 * 1024
    header_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    slow_reader_s: float = 30.0


class Connection(HttpToolsProtocol):
    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    _owed: asyncio.TimerHandle | None = None  # runs while the client owes us bytes
    _untaken: asyncio.TimerHandle | None = None  # runs while there are bytes that the client does not take
    _has_head = False  # of the request that is coming in
    _has_begun = False  # that head
    _num_head_bytes = 0  # in the pieces after its first
    _refusal: RequestError | None = None

    @classmethod
    def limited(cls, limits: ConnectionLimits) -> type[Connection]:
        """The protocol with these limits, as uvicorn takes it."""
        return type("LimitedConnection", (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_bytes()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting()
        self._stop_watching()
        super().connection_lost(exc)

    # ---- what comes ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        had_begun = self._has_begun
        super().data_received(data)
        if had_begun and self._has_begun:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.limits.max_header_bytes:
                self._refusal = self._too_large(f"at least {self._num_head_bytes} bytes", self.limits.max_header_bytes)
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._owed is None and self._owes_bytes:
            self._await_bytes()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun, self._num_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._has_head, self._has_begun = True, False
        self._stop_awaiting()
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MAX_HEADERS:
            self._refusal = self._too_large(f"{len(self.headers)} headers", MAX_HEADERS)
        elif num_bytes > self.limits.max_header_bytes:
            self._refusal = self._too_large(f"{num_bytes} bytes", self.limits.max_header_bytes)
        else:
            self._add_target_host()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_head = False
        self._stop_awaiting()
        if self._refusal is None:
            super().on_message_complete()

    @property
    def _is_answered(self) -> bool:
        """Nothing that came in whole is still being worked on."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _owes_bytes(self) -> bool:
        """The rest of a head, or of a body that nobody reads any more. uvicorn's own time-out, for a connection
        between two requests, ends with the first byte, whatever that is."""
        return self._has_begun or self._is_answered

    def _add_target_host(self) -> None:
        """`GET http://host/path`: that host counts beside the header, and is wrong if it is another one."""
        if self.url.startswith((b"/", b"*")):
            return
        target = httptools.parse_url(self.url)
        if not target.host:
            return
        host = b"[%b]" % target.host if b":" in target.host else target.host
        host = b"%b:%d" % (host, target.port) if target.port else host
        if not any(name == b"host" and value.lower() == host.lower() for name, value in self.headers):
            self.headers.append((b"host", host))

    def _too_large(self, what: str, limit: int) -> HeadersTooLarge:
        return HeadersTooLarge(f"the head of the request is too large: {what} > {limit} maximum")

    def _await_bytes(self) -> None:
        timeout_s = self.limits.body_timeout_s if self._has_head else self.limits.header_timeout_s
        self._owed = self.loop.call_later(timeout_s, self._took_too_long)

    def _stop_awaiting(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _took_too_long(self) -> None:
        if self._has_begun:
            self._refuse(RequestTimeout(f"the head of the request took more than {self.limits.header_timeout_s:g} s"))
        else:
            self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """Answer if that is possible, and hang up. What the client still sends is let come for a moment: it would
        not see the answer if we closed upon its bytes."""
        self._refusal = error
        self._stop_awaiting()
        if self.transport.is_closing():
            return
        if not self._is_answered:
            self.transport.close()
            return
        body = msgspec.json.encode(openai_error(error))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._owed = self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()

    # ---- what goes -------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_watching()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_head and self._owed is None:
            self._await_bytes()  # the rest of a body that was not wanted
        if self._untaken is None:
            self._watch_reader()

    def _watch_reader(self) -> None:
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes:
            left = max(0, num_bytes - MIN_TAKEN_BYTES)
            self._untaken = self.loop.call_later(self.limits.slow_reader_s, self._check_reader, left)

    def _check_reader(self, max_bytes: int) -> None:
        """`max_bytes`: what a reader who lives has left in our buffer by now."""
        self._untaken = None
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes <= max_bytes:
            self._watch_reader()
            return
        host = self.client[0] if self.client else "a client"
        log.warning("%s does not read its answer (%d bytes wait for it): dropped", host, num_bytes)
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None
