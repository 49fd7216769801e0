"""Looking without touching: health, metrics, the status page and its live data."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from homeai.errors import GPUUnavailable, NotFound
from homeai.metrics import CONTENT_TYPE
from homeai.server.answers import JSON, EventStream
from homeai.server.api.caller import caller_of
from homeai.server.gauges import families
from homeai.server.live import live
from homeai.server.service import Service
from homeai.server.status import snapshot
from homeai.server.supervisor import State

STATIC = Path(__file__).parent.parent / "static"
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-cache",
}


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["Status"])
    watched = live(service)

    @routes.head("/health", include_in_schema=False)
    @routes.get("/v1/health", include_in_schema=False)
    @routes.get("/health")
    async def health() -> Response:
        """200 when requests are answered: the model is resident and its loop alive, or the next request loads it."""
        return _health(service, may_sleep=True)

    @routes.head("/health/ready", include_in_schema=False)
    @routes.get("/health/ready")
    async def ready() -> Response:
        """200 when the model is resident and its loop alive: a request is computed at once."""
        return _health(service, may_sleep=False)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        service.authenticate(caller_of(request))
        return Response(service.books.metrics.render(families(service)), media_type=CONTENT_TYPE)

    @routes.get("/api/status")
    async def api_status(request: Request) -> Response:
        service.authenticate(caller_of(request))
        return JSON(snapshot(service))

    @routes.get("/api/status/events", responses={200: {"content": {"text/event-stream": {}}}})
    async def api_status_events(request: Request) -> Response:
        """The same object as an event, twice a second while something happens."""
        service.authenticate(caller_of(request))
        return EventStream(watched.events())

    @routes.get("/", include_in_schema=False)
    @routes.head("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", headers=PAGE_HEADERS)

    @routes.get("/static/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in _assets():
            raise NotFound(f"/static/{name}: Not Found")
        return FileResponse(STATIC / name, headers={"cache-control": "no-cache"})

    return routes


def _health(service: Service, *, may_sleep: bool) -> Response:
    """Otherwise 503, with the reason, for people and for programs."""
    supervisor = service.supervisor
    state = supervisor.state
    if state is State.RESIDENT and supervisor.is_alive:
        return JSON({"status": "ok"})
    if may_sleep and state is State.SLEEPING and service.keeper.opens_in_s is None:
        return JSON({"status": state})
    message, code = _why(service)
    error = {"message": message, "type": "unavailable_error", "code": 503}
    return JSON({"status": state, "reason": code, "error": error}, 503)


def _why(service: Service) -> tuple[str, str]:
    supervisor = service.supervisor
    if supervisor.state is State.RESIDENT:
        return "the engine does not answer", "engine_hung"
    if supervisor.is_unavailable:
        return supervisor.failure or "the device is not available", str(GPUUnavailable.code)
    return supervisor.failure or supervisor.away_reason or supervisor.state, supervisor.state


def _assets() -> set[str]:
    return {path.name for path in STATIC.iterdir()}
