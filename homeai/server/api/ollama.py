"""Ollama's API: chat, generate, and the one model as its clients look for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import InvalidRequest, ModelNotFound, NotSupported
from homeai.server.answers import JSON, unless_gone
from homeai.server.api.body import Documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.ollama_answers import (
    CONTENT_TYPE,
    ChatAnswer,
    TextAnswer,
    embeddings,
    empty_chat,
    empty_text,
    line,
)
from homeai.server.api.ollama_bodies import (
    ChatBody,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    GenerationBody,
    NamedBody,
    VectorsBody,
)
from homeai.server.api.ollama_models import running, show, tags
from homeai.server.api.respond import Value, noted, respond
from homeai.server.arrival import Arrival
from homeai.server.embeddings import Embedded, Input
from homeai.server.reply import Reply
from homeai.server.service import Service
from homeai.server.text import Text

VERSION: Final = "0.33.0"  # of the Ollama whose API this is; some clients refuse old ones
LATEST: Final = ":latest"
UNSUPPORTED: Final = ("create", "copy", "delete", "push", "me", "blobs/{digest:path}")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["Ollama"])

    @routes.post("/api/chat", openapi_extra=Documents(ChatBody))
    async def chat(request: Request) -> Response:
        """Answer a conversation; without messages, only say that the model is there."""
        with service.arriving("/api/chat", caller_of(request)) as arrival:
            body = await read_body(request, ChatBody)
            text = await _text(service, arrival, body)
            model = body.model or text.name
            if not body.messages:
                return await _loaded(request, service, arrival, body, empty_chat(model, _reason(body)))
            reply = await service.chat(arrival, body.chat(), body.ask())
        answer = ChatAnswer(reply, model, wants_logprobs=body.logprobs)
        return await respond(request, arrival, reply, answer, stream=body.stream)

    @routes.post("/api/generate", openapi_extra=Documents(GenerateBody))
    async def generate(request: Request) -> Response:
        """Answer a question, go on with a text, or fill the gap before a suffix."""
        with service.arriving("/api/generate", caller_of(request)) as arrival:
            body = await read_body(request, GenerateBody)
            text = await _text(service, arrival, body)
            model = body.model or text.name
            if body.kind == "load":
                return await _loaded(request, service, arrival, body, empty_text(model, _reason(body)))
            reply = await _generation(service, arrival, text, body)
        answer = TextAnswer(reply, model, wants_logprobs=body.logprobs)
        return await respond(request, arrival, reply, answer, stream=body.stream)

    @routes.post("/api/embed", openapi_extra=Documents(EmbedBody))
    async def embed(request: Request) -> Response:
        """Turn texts into vectors."""
        started = time.monotonic()
        with service.arriving("/api/embed", caller_of(request)) as arrival:
            body = await read_body(request, EmbedBody)
            embedded = await _vectors(request, service, arrival, body, body.inputs, body.dimensions or None)
        return noted(JSON(embeddings(body.model, embedded, time.monotonic() - started)), arrival)

    @routes.post("/api/embeddings", openapi_extra=Documents(EmbeddingsBody))
    async def old_embeddings(request: Request) -> Response:
        """Turn a text into a vector."""
        with service.arriving("/api/embeddings", caller_of(request)) as arrival:
            body = await read_body(request, EmbeddingsBody)
            embedded = await _vectors(request, service, arrival, body, [body.prompt] if body.prompt else [])
        return noted(JSON({"embedding": embedded.floats[0] if embedded.vectors else []}), arrival)

    @routes.head("/api/tags", include_in_schema=False)
    @routes.get("/api/tags")
    async def api_tags(request: Request) -> Response:
        """The models there are: one."""
        service.authenticate(caller_of(request))
        return JSON(tags(service.text))

    @routes.head("/api/ps", include_in_schema=False)
    @routes.get("/api/ps")
    async def api_ps(request: Request) -> Response:
        """The models that are loaded."""
        service.authenticate(caller_of(request))
        return JSON(running(service.text, service.supervisor.ready, service.keeper.expires_in_s))

    @routes.head("/api/version", include_in_schema=False)
    @routes.get("/api/version")
    async def version(request: Request) -> Response:
        service.authenticate(caller_of(request))
        return JSON({"version": VERSION})

    @routes.post("/api/show", openapi_extra=Documents(NamedBody))
    async def api_show(request: Request) -> Response:
        """What is known of the model."""
        service.authenticate(caller_of(request))
        body = await read_body(request, NamedBody)
        return JSON(show(await resident(service, body.wanted)))

    @routes.post("/api/pull", openapi_extra=Documents(NamedBody))
    async def pull(request: Request) -> Response:
        """The resident model is there already; no other one comes."""
        service.authenticate(caller_of(request))
        body = await read_body(request, NamedBody)
        await resident(service, body.wanted)
        return _one({"status": "success"}, stream=body.stream)

    async def unsupported(request: Request) -> Response:
        service.authenticate(caller_of(request))
        raise NotSupported(f"homeai manages one resident model; {request.url.path} is not supported")

    for name in UNSUPPORTED:
        routes.add_api_route(f"/api/{name}", unsupported, methods=list(METHODS), include_in_schema=False)

    return routes


async def resident(service: Service, name: str | None) -> Text:
    """The resident model's text, if `name` means it: as it is, or with `:latest`. Raises `ModelNotFound`."""
    text = await service.text_for(None)
    if text.knows(_untagged(text, name)):
        return text
    raise _not_found(name)


def _untagged(text: Text, name: str | None) -> str | None:
    return name if name is None or text.knows(name) else name.removesuffix(LATEST)


def _not_found(name: str | None) -> ModelNotFound:
    return ModelNotFound(f"model '{name}' not found", param="model")


async def _text(service: Service, arrival: Arrival, body: GenerationBody) -> Text:
    """Of the model that is asked, if it can do what is asked. Raises `InvalidRequest`, `ModelNotFound`."""
    text = await resident(service, body.model)
    if body.thinks and not text.can_think:
        raise InvalidRequest(f'"{body.model or text.name}" does not support thinking', param="think")
    arrival.notes += body.notes
    return text


async def _generation(service: Service, arrival: Arrival, text: Text, body: GenerateBody) -> Reply:
    if body.kind == "chat":
        return await service.chat(arrival, body.chat(), body.ask())
    if body.kind == "raw":
        token_ids = await text.encode_mixed([body.prompt])
    elif text.fills_gaps:
        token_ids = await text.encode_infill(body.prompt, body.suffix)
    else:
        raise InvalidRequest(f'"{body.model or text.name}" does not support insert', param="suffix")
    return await service.complete(arrival, [token_ids], body.ask(), answer_format=body.answer_format)


async def _loaded(
    request: Request, service: Service, arrival: Arrival, body: GenerationBody, answer: Value
) -> Response:
    """A body without a question loads the model and waits for it, or says that it may leave."""
    if body.is_unload:
        service.release(arrival)
    else:
        await unless_gone(request.receive, service.ensure_ready(arrival, body.keep_alive))
    return noted(_one(answer, stream=body.stream), arrival)


async def _vectors(
    request: Request,
    service: Service,
    arrival: Arrival,
    body: VectorsBody,
    inputs: Sequence[Input],
    dimensions: int | None = None,
) -> Embedded:
    """Nothing is computed without inputs. Raises `ModelNotFound` in Ollama's words."""
    text = await service.text_for(None)
    arrival.notes += body.notes
    if not inputs:
        return Embedded((await resident(service, body.model)).name, [], 0, [])
    work = service.embed(arrival, inputs, model=_untagged(text, body.model), dimensions=dimensions)
    try:
        return await unless_gone(request.receive, work)
    except ModelNotFound:
        raise _not_found(body.model) from None


def _reason(body: GenerationBody) -> str:
    return "unload" if body.is_unload else "load"


def _one(answer: Value, *, stream: bool) -> Response:
    return Response(line(answer), media_type=CONTENT_TYPE) if stream else JSON(answer)
