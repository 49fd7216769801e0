"""Headers and address of a connection → `Caller`."""

from __future__ import annotations

from starlette.requests import Request

from homeai.server.service import Caller


def caller_of(request: Request) -> Caller:
    """The key from `Authorization: Bearer` or `X-Api-Key`."""
    headers = request.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        token = headers.get("x-api-key", "")
    address = request.client.host if request.client else None
    state = request.state
    return Caller(
        address, token.strip() or None, headers.get("x-homeai-source"), state.request_id, state.client_request_id
    )
