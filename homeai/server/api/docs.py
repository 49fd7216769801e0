"""The OpenAPI documents as a page that needs nothing from the internet: Swagger UI as a package brings it along."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from homeai.errors import NotFound

STATIC: Final = Path(__file__).parent.parent / "static"
PAGE_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cache-control": "no-cache",
}
MEDIA_TYPES: Final = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}


def router() -> APIRouter:
    routes = APIRouter()

    @routes.get("/docs", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "docs.html", headers=PAGE_HEADERS)

    @routes.get("/docs/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in MEDIA_TYPES:
            raise NotFound(f"/docs/{name}: Not Found")
        content = resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
        return Response(content, media_type=MEDIA_TYPES[name], headers={"cache-control": "max-age=3600"})

    return routes
