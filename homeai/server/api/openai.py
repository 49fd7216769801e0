"""OpenAI's API: chat completions, completions, models. Each also without /v1, for base URLs typed short."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import ModelNotFound
from homeai.server.answers import JSON
from homeai.server.api.body import documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.openai_answers import ChatAnswer, CompletionAnswer, Options
from homeai.server.api.openai_bodies import ChatBody, CompletionBody, SamplingBody
from homeai.server.api.respond import Value, respond
from homeai.server.service import Service
from homeai.server.text import Text


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions", openapi_extra=documents(ChatBody))
    @routes.post("/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        with service.arriving("/v1/chat/completions", caller_of(request)) as arrival:
            body = await read_body(request, ChatBody)
            reply = await service.chat(arrival, body.chat(), body.ask())
        answer = ChatAnswer(reply, arrival.caller.request_id, **_options(body))
        return await respond(request, arrival, reply, answer, stream=body.stream, ping_s=_ping_s(service, body))

    @routes.post("/v1/completions", openapi_extra=documents(CompletionBody))
    @routes.post("/completions", include_in_schema=False)
    async def completions(request: Request) -> Response:
        """Continue a text, or several."""
        with service.arriving("/v1/completions", caller_of(request)) as arrival:
            body = await read_body(request, CompletionBody)
            reply = await service.complete(arrival, body.prompts(), body.ask())
        answer = CompletionAnswer(reply, arrival.caller.request_id, **_options(body))
        return await respond(request, arrival, reply, answer, stream=body.stream, ping_s=_ping_s(service, body))

    @routes.get("/v1/models")
    @routes.get("/models", include_in_schema=False)
    async def models(request: Request) -> Response:
        """The resident model."""
        service.authenticate(caller_of(request))
        data = [_model(service, service.text)] if service.text else []
        return JSON({"object": "list", "data": data})

    @routes.get("/v1/models/{name:path}")
    @routes.get("/models/{name:path}", include_in_schema=False)
    async def model(request: Request, name: str) -> Response:
        service.authenticate(caller_of(request))
        if service.text is None or not service.text.knows(name):
            raise ModelNotFound(f"model {name!r} does not exist", param="model")
        return JSON(_model(service, service.text))

    return routes


def _model(service: Service, text: Text) -> Value:
    ready = service.supervisor.ready
    return {
        "id": text.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "homeai",
        "root": text.name,
        "aliases": list(text.aliases),
        "max_model_len": text.max_model_len,
        "meta": {
            "n_ctx": text.max_model_len,
            "n_ctx_train": text.n_ctx_train,
            "n_vocab": text.num_vocab_tokens,
            "size": ready.model_bytes if ready else None,
        },
    }


def _options(body: SamplingBody) -> Options:
    wants_logprobs = body.num_logprobs is not None
    return Options(n=body.n, wants_logprobs=wants_logprobs, include_usage=bool(body.stream_options.include_usage))


def _ping_s(service: Service, body: SamplingBody) -> float:
    return service.config.server.ping_interval_s if body.sse_ping_interval is None else body.sse_ping_interval
