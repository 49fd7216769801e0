"""Anthropic's API: messages, and how many tokens they are. Each also without /v1."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.server.answers import JSON
from homeai.server.api.anthropic_answers import MessageAnswer
from homeai.server.api.anthropic_bodies import CountBody, MessagesBody
from homeai.server.api.body import Documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.respond import noted, respond
from homeai.server.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["Anthropic"])

    @routes.post("/v1/messages", openapi_extra=Documents(MessagesBody))
    @routes.post("/messages", include_in_schema=False)
    async def messages(request: Request) -> Response:
        """Answer a conversation."""
        with service.arriving("/v1/messages", caller_of(request)) as arrival:
            body = await read_body(request, MessagesBody)
            reply = await service.chat(arrival, body.chat(arrival.notes), body.ask())
        answer = MessageAnswer(
            reply, arrival.caller.request_id, stop_sequences=body.stop_sequences, max_tokens=body.max_tokens
        )
        ping_s = service.config.server.ping_interval_s
        return await respond(request, arrival, reply, answer, stream=body.stream, ping_s=ping_s)

    @routes.post("/v1/messages/count_tokens", openapi_extra=Documents(CountBody))
    @routes.post("/messages/count_tokens", include_in_schema=False)
    async def count_tokens(request: Request) -> Response:
        """How long the prompt would be. Asks no model, so it waits for nobody."""
        with service.arriving("/v1/messages/count_tokens", caller_of(request)) as arrival:
            body = await read_body(request, CountBody)
            num_tokens = await service.count_tokens(arrival, body.chat(arrival.notes), body.resident_model)
        return noted(JSON({"input_tokens": num_tokens}), arrival)

    return routes
