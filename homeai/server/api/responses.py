"""OpenAI's Responses API: responses, and how many tokens their input is. Each also without /v1."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.server.answers import JSON
from homeai.server.api.body import Documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.respond import noted, respond
from homeai.server.api.responses_answers import ResponseAnswer
from homeai.server.api.responses_bodies import InputBody, ResponsesBody
from homeai.server.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/responses", openapi_extra=Documents(ResponsesBody))
    @routes.post("/responses", include_in_schema=False)
    async def responses(request: Request) -> Response:
        """Answer a conversation, in items. Nothing of it is stored."""
        with service.arriving("/v1/responses", caller_of(request)) as arrival:
            body = await read_body(request, ResponsesBody)
            box = body.toolbox(arrival.notes)
            reply = await service.chat(arrival, body.chat(box, arrival.notes), body.ask())
        answer = ResponseAnswer(reply, arrival.caller.request_id, body, box)
        ping_s = service.config.server.ping_interval_s
        return await respond(request, arrival, reply, answer, stream=body.stream, ping_s=ping_s)

    @routes.post("/v1/responses/input_tokens", openapi_extra=Documents(InputBody))
    @routes.post("/responses/input_tokens", include_in_schema=False)
    async def input_tokens(request: Request) -> Response:
        """How long the prompt would be. Asks no model, so it waits for nobody."""
        with service.arriving("/v1/responses/input_tokens", caller_of(request)) as arrival:
            body = await read_body(request, InputBody)
            box = body.toolbox(arrival.notes)
            num_tokens = await service.count_tokens(arrival, body.chat(box, arrival.notes), body.model)
        return noted(JSON({"object": "response.input_tokens", "input_tokens": num_tokens}), arrival)

    return routes
