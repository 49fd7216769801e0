"""What every request passes before a route sees it. Plain ASGI: nothing here may slow a stream."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from homeai.errors import BodyTooLarge, HostNotAllowed, RequestError, RequestTimeout
from homeai.server.answers import error_response

MAX_ID_LENGTH = 128
METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED_HEADERS = ("x-request-id", "request-id", "retry-after", "retry-after-ms", "x-should-retry", "x-homeai-notes")
LOCAL_NAME = re.compile(r"(?:[a-z0-9_-]+\.)+(?:local|localhost)")

log = logging.getLogger("homeai.server")


class Names:
    """Which names are ours, and which pages are let ask."""

    def __init__(self, allowed_hosts: Iterable[str], cors_origins: Iterable[str] = ()) -> None:
        self._hosts = {_name_of(host) for host in (*allowed_hosts, "localhost", socket.gethostname())}
        self._origins = [_wildcard(origin) for origin in cors_origins]

    def are_ours(self, name: str) -> bool:
        """No page of the web can make a browser send an address as Host: only names can be rebound."""
        return self._is_named(name) or _address(name) is not None

    def lets_page_ask(self, origin: str, host: str = "") -> bool:
        """`host` is what the page calls us. Anybody may have a page at a public address: only private ones are ours."""
        name, address = _name_of(origin.partition("://")[2]), _address(_name_of(origin.partition("://")[2]))
        is_near = address is not None and (address.is_private or address.is_loopback) and not address.is_unspecified
        is_same = bool(name) and name == _name_of(host) and self.are_ours(name)
        return self._is_named(name) or is_near or is_same or any(o.fullmatch(origin) for o in self._origins)

    def _is_named(self, name: str) -> bool:
        return name in self._hosts or LOCAL_NAME.fullmatch(name) is not None


class HostGuard:
    """Keeps pages of the web out, which a browser in the house would let ask us without anybody's knowing.

    A foreign `Host` is a page that rebound its own name to our address (DNS); a foreign `Origin` one that
    simply posts to us. Programs send no `Origin`.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str], cors_origins: Iterable[str] = ()) -> None:
        self.app = app
        self._names = Names(allowed_hosts, cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            error = self._foreign(headers.getlist("host"), headers.get("origin"))
            if error is not None:
                await error_response(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _foreign(self, hosts: list[str], origin: str | None) -> HostNotAllowed | None:
        if len(hosts) != 1 or not self._names.are_ours(_name_of(hosts[0])):
            shown = ", ".join(map(repr, hosts)) or "''"
            return HostNotAllowed(f"host {shown} is not allowed: add it to server.allowed_hosts")
        if origin is not None and not self._names.lets_page_ask(origin, hosts[0]):
            return HostNotAllowed(f"pages of {origin!r} may not ask: add it to server.cors_origins")
        return None


class CORS(CORSMiddleware):
    """Tells browsers that the pages which `HostGuard` lets ask may also read the answers, and send any header.

    Keys travel in headers that a page must know itself; a browser adds none by itself, so there are no credentials.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str], cors_origins: Iterable[str]) -> None:
        super().__init__(
            app,
            allow_methods=METHODS,
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            allow_private_network=True,
        )
        self._names = Names(allowed_hosts, cors_origins)

    def is_allowed_origin(self, origin: str) -> bool:
        return self._names.lets_page_ask(origin)


def _name_of(host: str) -> str:
    """`Home.lan.:8700` → `home.lan`, `[::1]:8700` → `::1`."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _wildcard(origin: str) -> re.Pattern[str]:
    """ "*" stands for anything."""
    return re.compile(".*".join(map(re.escape, origin.rstrip("/").split("*"))), re.IGNORECASE | re.DOTALL)


class BodyLimit:
    """Counts body bytes as they come, so that a missing or wrong Content-Length does not matter, and the time.

    The error comes out of reading the body: the route that reads it knows who is asking, and writes it down.
    `scope["state"]` gets `max_body_bytes`, for whoever unpacks a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        timeout_s: float | None = None,
        larger: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`timeout_s`: from when the body is first asked for to its end. None: for ever.

        `larger`: `max_bytes` of some paths; to those a body may come as slowly as the largest to others.
        """
        self.app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        max_bytes = max(self._max_bytes, self._larger.get(scope.get("path", ""), 0))
        timeout_s = None if self._timeout_s is None else self._timeout_s * max_bytes / self._max_bytes
        announced = Headers(scope=scope).get("content-length", "")
        num_announced = int(announced) if announced.isdecimal() else 0
        scope["state"] = {**scope.get("state", {}), "max_body_bytes": max_bytes}
        num_bytes = 0
        due_at: float | None = None
        is_whole = False

        async def counted() -> Message:
            nonlocal num_bytes, due_at, is_whole
            if is_whole:
                return await receive()  # waits for the client to leave, however long that is
            _check_size(num_announced, max_bytes)
            if due_at is None and timeout_s is not None:
                due_at = asyncio.get_running_loop().time() + timeout_s
            message = await _in_time(receive, due_at, num_bytes, timeout_s)
            num_bytes += len(message.get("body", b""))
            _check_size(num_bytes, max_bytes)
            is_whole = not message.get("more_body", False)
            return message

        await self.app(scope, counted, send)


async def _in_time(receive: Receive, due_at: float | None, num_bytes: int, timeout_s: float | None) -> Message:
    try:
        async with asyncio.timeout_at(due_at):
            return await receive()
    except TimeoutError:
        raise RequestTimeout(
            f"the request body took too long: {num_bytes} bytes within {timeout_s or 0:g} s, and more to come"
        ) from None


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"the request body is too large: {num_bytes} bytes > {max_bytes} maximum")


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
