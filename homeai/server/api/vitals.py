"""What the daemon noticed lately, for its owner: `homeai doctor` reads it. Looking changes nothing."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.server.answers import JSON
from homeai.server.api.admin import check_owner
from homeai.server.service import Service
from homeai.server.vitals import vitals


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["Administration"])

    @routes.get("/api/admin/vitals")
    async def read_vitals(request: Request) -> Response:
        """The last quarter of an hour: queue and steps, tokenising, what changes in prompts, the settings in force."""
        check_owner(service, request)
        return JSON(vitals(service))

    return routes
