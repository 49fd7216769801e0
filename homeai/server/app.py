"""The HTTP application: routers, guards, error handlers. Everything it needs is handed in."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Lifespan

from homeai import __version__
from homeai.errors import NotFound, RequestError
from homeai.server.answers import ClientGone, error_response
from homeai.server.api import openai, status
from homeai.server.guards import BodyLimit, HostGuard, Recovery, RequestId
from homeai.server.service import Service


def create_app(service: Service, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    app = FastAPI(title="homeai", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(openai.router(service))
    app.include_router(status.router(service))
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_middleware(BodyLimit, max_bytes=service.config.server.max_body_bytes)
    app.add_middleware(HostGuard, allowed_hosts=service.config.server.allowed_hosts)
    app.add_middleware(Recovery)
    app.add_middleware(RequestId)
    return app


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the shape that clients parse."""
    assert isinstance(error, HTTPException)
    answer = NotFound(f"{request.method} {request.url.path}: {error.detail}")
    answer.status = error.status_code
    response = error_response(answer, request.scope)
    response.headers.update(error.headers or {})
    return response


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
