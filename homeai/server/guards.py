"""What every request passes before a route sees it. Plain ASGI: nothing here may slow a stream."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from homeai.errors import BodyTooLarge, HostNotAllowed
from homeai.server.answers import error_response


class HostGuard:
    """Refuses foreign `Host` headers: a page in a browser must not reach us by rebinding its own name (DNS)."""

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str]) -> None:
        self.app = app
        self._allowed = {h.lower() for h in allowed_hosts} | {"localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            if not self._is_allowed(host):
                error = HostNotAllowed(f"host {host!r} is not allowed: add it to server.allowed_hosts")
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        name = _without_port(host).lower().rstrip(".")
        return name in self._allowed or name.endswith((".local", ".localhost")) or _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class BodyLimit:
    """Counts body bytes as they come, so that a missing or wrong Content-Length does not matter."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await error_response(self._error(int(announced)))(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._error(num_bytes)
            return message

        await self.app(scope, counted, send)

    def _error(self, num_bytes: int) -> BodyTooLarge:
        return BodyTooLarge(f"the request body is too large: {num_bytes} bytes > {self._max_bytes} maximum")


class RequestId:
    """Every answer says which one it is, under both names that clients look for."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")[:128] or uuid.uuid4().hex

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = request_id
            await send(message)

        await self.app(scope, receive, with_id)
