"""Headers and address of a connection → `Caller`."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import Request

from homeai.server.arrival import Caller
from homeai.server.sources import OpenWebUIUser


def caller_of(request: Request) -> Caller:
    headers = request.headers
    return Caller(
        address=request.client.host if request.client else None,
        token=_token(headers),
        source_header=headers.get("x-homeai-source"),
        request_id=request.state.request_id,
        client_request_id=request.state.client_request_id,
        openwebui=_openwebui_user(headers),
        headers=headers,
        on_behalf=getattr(request.state, "on_behalf", None),
    )


def _token(headers: Headers) -> str | None:
    """The key from `Authorization: Bearer`, `X-Api-Key`, or Azure's `api-key`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = token if scheme.lower() == "bearer" else ""
    candidates = given, headers.get("x-api-key", ""), headers.get("api-key", "")
    return next((candidate.strip() for candidate in candidates if candidate.strip()), None)


def _openwebui_user(headers: Headers) -> OpenWebUIUser | None:
    """Names arrive percent-encoded."""
    id, email = headers.get("x-openwebui-user-id"), headers.get("x-openwebui-user-email")
    name = headers.get("x-openwebui-user-name")
    if not (id or email or name):
        return None
    return OpenWebUIUser(id or None, email or None, unquote(name) if name else None)
