"""What every request passes before a route sees it. Plain ASGI: nothing here may slow a stream."""

from __future__ import annotations

import logging
import re
import socket
import uuid
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from homeai.errors import BodyTooLarge, HostNotAllowed, RequestError
from homeai.server.answers import error_response

MAX_ID_LENGTH = 128
LOCAL_NAME = re.compile(r"(?:[a-z0-9_-]+\.)+(?:local|localhost)")

log = logging.getLogger("homeai.server")


class HostGuard:
    """Keeps pages of the web out, which a browser in the house would let ask us without anybody's knowing.

    A foreign `Host` is a page that rebound its own name to our address (DNS); a foreign `Origin` one that
    simply posts to us. Programs send no `Origin`.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str]) -> None:
        self.app = app
        self._allowed = {_name_of(host) for host in (*allowed_hosts, "localhost", socket.gethostname())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            error = self._foreign(headers.getlist("host"), headers.get("origin"))
            if error is not None:
                await error_response(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _foreign(self, hosts: list[str], origin: str | None) -> HostNotAllowed | None:
        if len(hosts) != 1 or not self._is_allowed(_name_of(hosts[0])):
            shown = ", ".join(map(repr, hosts)) or "''"
            return HostNotAllowed(f"host {shown} is not allowed: add it to server.allowed_hosts")
        if origin is not None and not self._is_allowed(_name_of(origin.partition("://")[2])):
            return HostNotAllowed(f"pages of {origin!r} may not ask: add its host to server.allowed_hosts")
        return None

    def _is_allowed(self, name: str) -> bool:
        return name in self._allowed or LOCAL_NAME.fullmatch(name) is not None or _is_address(name)


def _name_of(host: str) -> str:
    """`Home.lan.:8700` → `home.lan`, `[::1]:8700` → `::1`."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class BodyLimit:
    """Counts body bytes as they come, so that a missing or wrong Content-Length does not matter.

    The error comes out of reading the body: the route that reads it knows who is asking, and writes it down.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        num_announced = int(announced) if announced.isdecimal() else 0
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            self._check(num_announced)
            message = await receive()
            num_bytes += len(message.get("body", b""))
            self._check(num_bytes)
            return message

        await self.app(scope, counted, send)

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise BodyTooLarge(f"the request body is too large: {num_bytes} bytes > {self._max_bytes} maximum")


class Recovery:
    """A bug is logged and gets an answer. Starlette's own handler would be outside of `RequestId`, and uvicorn
    would close the connection under the client's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise  # the client must see that its answer broke off
            log.exception("%s %s failed", scope["method"], scope["path"])
            await error_response(RequestError(f"internal error: {type(error).__name__}"), scope)(scope, receive, send)


class RequestId:
    """Every answer says which one it is, under both names that clients look for.

    `scope["state"]` gets our own `request_id`, which answer and ledger carry, and `client_request_id`, the
    client's name for it or None. The header repeats the client's, since that is what it looks for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        client_request_id = Headers(scope=scope).get("x-request-id", "")[:MAX_ID_LENGTH] or None
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "client_request_id": client_request_id}

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = client_request_id or request_id
            await send(message)

        await self.app(scope, receive, with_id)
