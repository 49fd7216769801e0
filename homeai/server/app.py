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
from homeai.server.api import (
    admin,
    anthropic,
    batches,
    docs,
    embeddings,
    files,
    llamacpp,
    ollama,
    openai,
    openai_models,
    responses,
    status,
    tokens,
    vitals,
)
from homeai.server.guards import CORS, BodyLimit, HostGuard, Recovery, RequestId
from homeai.server.openapi import Application
from homeai.server.service import Service

FORM_BYTES = 65_536  # of an uploaded file's form, beside the file


def create_app(service: Service, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    app = Application(title="homeai", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(openai.router(service))
    app.include_router(openai_models.router(service))
    app.include_router(anthropic.router(service))
    app.include_router(ollama.router(service))
    app.include_router(embeddings.router(service))
    app.include_router(llamacpp.router(service))
    app.include_router(tokens.router(service))
    app.include_router(responses.router(service))
    app.include_router(files.router(service))
    app.include_router(batches.router(service))
    app.include_router(status.router(service))
    app.include_router(admin.router(service))
    app.include_router(vitals.router(service))
    app.include_router(docs.router())
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    server = service.config.server
    upload_bytes = service.config.batches.max_file_bytes + FORM_BYTES
    app.add_middleware(
        BodyLimit,
        max_bytes=server.max_body_bytes,
        timeout_s=server.body_timeout_s,
        larger=dict.fromkeys(("/v1/files", "/files"), upload_bytes),
    )
    app.add_middleware(CORS, allowed_hosts=server.allowed_hosts, cors_origins=server.cors_origins)
    app.add_middleware(HostGuard, allowed_hosts=server.allowed_hosts, cors_origins=server.cors_origins)
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
