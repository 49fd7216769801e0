"""What the owner does with the model: load, unload, reload, pin, yield; and pausing a class.

From this machine, where no key is needed there, or with an admin key (`homeai keys add NAME --admin`). Each answers at
once with what is wanted now; /api/status says when it is so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import ConfigError, InvalidRequest, ModelLoadError, NotPermitted
from homeai.models import found
from homeai.server.answers import JSON
from homeai.server.api.body import Body, Documents, parse_body
from homeai.server.api.caller import caller_of
from homeai.server.api.respond import Value
from homeai.server.service import Service
from homeai.server.sources import is_loopback
from homeai.server.switching import Switch
from homeai.server.text import Text


class YieldBody(Body):
    """POST /api/admin/yield"""

    seconds: Annotated[float, Field(gt=0)] | None = None  # it comes back by itself then; else with `load`


class ReloadBody(Body):
    """POST /api/admin/reload"""

    model: str | None = None  # a GGUF file on the server, or the name of a pulled model; else the one that is loaded


class ClassBody(Body):
    """POST /api/admin/pause, /api/admin/resume"""

    fairness_class: str = Field(alias="class")


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["Administration"], prefix="/api/admin")
    keeper = service.keeper

    @routes.post("/load")
    async def load(request: Request) -> Response:
        """Load the model, whatever was said before; from then on the settings' policy counts again."""
        check_owner(service, request)
        if service.text is None and service.supervisor.state == "failed":
            keeper.switch(await _switch(service, None))
        else:
            keeper.load()
        return _done(service, "load")

    @routes.post("/unload")
    async def unload(request: Request) -> Response:
        """Free its memory, when what runs has ended; the next request loads it again."""
        check_owner(service, request)
        keeper.unload()
        return _done(service, "unload")

    @routes.post("/pin")
    async def pin(request: Request) -> Response:
        """Load it, and keep it loaded whatever the settings' policy says."""
        check_owner(service, request)
        keeper.pin()
        return _done(service, "pin")

    @routes.post("/yield", openapi_extra=Documents(YieldBody))
    async def give_device_away(request: Request) -> Response:
        """Make room on the device for other programs, at once; `load` takes it back."""
        check_owner(service, request)
        body = parse_body(await request.body() or b"{}", YieldBody)
        keeper.give_device_away(body.seconds)
        return _done(service, "yield" if body.seconds is None else f"yield for {body.seconds:g} s")

    @routes.post("/reload", openapi_extra=Documents(ReloadBody))
    async def reload(request: Request) -> Response:
        """Load another model, or the same anew, without dropping the queue."""
        check_owner(service, request)
        body = parse_body(await request.body() or b"{}", ReloadBody)
        keeper.switch(await _switch(service, body.model))
        return _done(service, "reload")

    @routes.post("/pause", openapi_extra=Documents(ClassBody))
    async def pause(request: Request) -> Response:
        """Requests of a class wait until `resume`; what runs goes on."""
        check_owner(service, request)
        keeper.pause(fairness_class := await _class(service, request))
        return _done(service, f"pause {fairness_class}")

    @routes.post("/resume", openapi_extra=Documents(ClassBody))
    async def resume(request: Request) -> Response:
        check_owner(service, request)
        keeper.resume(fairness_class := await _class(service, request))
        return _done(service, f"resume {fairness_class}")

    return routes


def check_owner(service: Service, request: Request) -> None:
    """Raises `NotAuthenticated`, `NotPermitted`."""
    caller = caller_of(request)
    key = service.authenticate(caller)
    is_owner_here = key is None and is_loopback(caller.address) and service.config.server.auth != "keys"
    if not (is_owner_here or (key is not None and key.admin)):
        raise NotPermitted("this needs an admin key (`homeai keys add NAME --admin`), or to be asked on this machine")


async def _class(service: Service, request: Request) -> str:
    body = parse_body(await request.body(), ClassBody)
    if body.fairness_class not in service.config.classes:
        known = ", ".join(service.config.classes)
        raise InvalidRequest(f"class: {body.fairness_class!r} does not exist; there are {known}", param="class")
    return body.fairness_class


async def _switch(service: Service, model: str | None) -> Switch:
    """The vocabulary is read first: what is no model changes nothing. Raises `InvalidRequest`."""
    try:
        path = service.model_path if model is None else await asyncio.to_thread(_found, service, model)
        text = await asyncio.to_thread(Text.load, path, service.config)
    except (ConfigError, ModelLoadError) as error:
        raise InvalidRequest(str(error), param="model") from None
    return Switch(service, path, text)


def _found(service: Service, model: str) -> Path:
    return found(service.config, Path(model).expanduser())


def _done(service: Service, what: str) -> JSON:
    """What is wanted from now on."""
    service.happened("owner", what)
    verdict = service.keeper.verdict()
    answer: Value = {
        "state": service.supervisor.state,
        "wanted": verdict.aim,
        "reason": verdict.reason,
        "paused": sorted(service.client.paused),
    }
    return JSON(answer)
