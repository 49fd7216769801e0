"""OpenAI's API: chat completions, completions, models. Each also without /v1, for base URLs typed short."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import InvalidRequest, ModelNotFound, RequestError
from homeai.request import FinishReason, SampledToken
from homeai.server.answers import JSON, EventStream, unless_gone
from homeai.server.api.body import read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.openai_answers import (
    DONE,
    PING,
    Answer,
    ChatAnswer,
    CompletionAnswer,
    Value,
    error_event,
    timings,
    usage,
)
from homeai.server.api.openai_bodies import ChatBody, CompletionBody, SamplingBody
from homeai.server.reply import Reply
from homeai.server.service import Service
from homeai.server.text import Text

B = TypeVar("B", bound=SamplingBody)

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions; a chat goes on to its natural end
MIN_PING_S = 0.1  # a client may ask for more of them, but not for all that we can send


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions", openapi_extra=_documents(ChatBody))
    @routes.post("/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        with service.arriving("/v1/chat/completions", caller_of(request)) as arrival:
            body = await read_body(request, ChatBody)
            service.name_user(arrival, body.user)
            messages = body.chat_messages()
            _check_count(service, body.n)
            text = await service.text_for(body.model)
            prompt = await text.encode_chat(service.steady(arrival, messages))
            sampling = body.sampling(text, len(prompt), default_max_tokens=None)
            stream = service.submit(
                arrival, [prompt], sampling, n=body.n, seed=body.fixed_seed, cache_prompt=body.cache_prompt
            )
        reply = Reply(service.client, stream, text, lambda: text.chat_output(body.stop))
        answer = ChatAnswer(text, arrival.caller.request_id, wants_logprobs=body.logprobs)
        response = await _respond(request, service, body, reply, answer)
        if arrival.notes:
            response.headers["X-HomeAI-Notes"] = "; ".join(arrival.notes)
        return response

    @routes.post("/v1/completions", openapi_extra=_documents(CompletionBody))
    @routes.post("/completions", include_in_schema=False)
    async def completions(request: Request) -> Response:
        """Continue a text, or several."""
        with service.arriving("/v1/completions", caller_of(request)) as arrival:
            body = await read_body(request, CompletionBody)
            service.name_user(arrival, body.user)
            prompts = body.prompts()
            _check_count(service, body.n * len(prompts))
            text = await service.text_for(body.model)
            token_ids = [await _token_ids(text, prompt) for prompt in prompts]
            shortest = min(map(len, token_ids))  # the scheduler ends a longer one at the model's length
            sampling = body.sampling(text, shortest, default_max_tokens=COMPLETION_MAX_TOKENS)
            stream = service.submit(
                arrival, token_ids, sampling, n=body.n, seed=body.fixed_seed, cache_prompt=body.cache_prompt
            )
        reply = Reply(service.client, stream, text, lambda: text.completion_output(body.stop))
        answer = CompletionAnswer(text, arrival.caller.request_id, wants_logprobs=body.logprobs is not None)
        return await _respond(request, service, body, reply, answer)

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


def _documents(model: type[SamplingBody]) -> dict[str, object]:
    """The body's schema for OpenAPI: we read bodies ourselves, strictly."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


async def _token_ids(text: Text, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        return await text.encode_prompt(prompt)
    text.check_token_ids(prompt, param="prompt")
    return prompt


def _check_count(service: Service, count: int) -> None:
    limit = service.config.scheduler.max_num_seqs
    if count > limit:
        raise InvalidRequest(f"too many choices at once: {count} > {limit} maximum (scheduler.max_num_seqs)", param="n")


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


async def _respond(request: Request, service: Service, body: SamplingBody, reply: Reply, answer: Answer) -> Response:
    """Errors that come before the first token still get their real status; later ones are events."""
    interval_s = service.config.server.ping_interval_s if body.sse_ping_interval is None else body.sse_ping_interval
    ping_s = max(interval_s, MIN_PING_S) if interval_s > 0 else None
    try:
        if not body.stream:
            return JSON(await unless_gone(request.receive, _whole(reply, body.n, answer)))
        await unless_gone(request.receive, reply.wait(ping_s))
    except BaseException:
        reply.close()
        raise
    return EventStream(_chunks(reply, body, answer, ping_s))


async def _whole(reply: Reply, n: int, answer: Answer) -> Value:
    texts: list[list[str]] = [[] for _ in reply.generations]
    tokens: list[list[SampledToken]] = [[] for _ in reply.generations]
    reasons = [FinishReason.STOP] * len(texts)
    while not reply.is_over:
        await reply.wait()
        for piece in reply.read():
            texts[piece.choice].append(piece.text)
            tokens[piece.choice] += piece.tokens
            reasons[piece.choice] = piece.finish_reason or reasons[piece.choice]
    choices = [answer.choice(i, "".join(texts[i]), tokens[i], reasons[i]) for i in range(len(texts))]
    body = answer.whole(choices, usage(reply.generations, num_choices_per_prompt=n))
    return body | {"timings": timings(reply.generations[0])}


async def _chunks(
    reply: Reply, body: SamplingBody, answer: Answer, ping_s: float | None
) -> AsyncGenerator[bytes, None]:
    """All that one wake-up brought goes out in one write."""
    try:
        while not reply.is_over:
            if await reply.wait(ping_s):
                yield b"".join(_new_chunks(reply, answer))
            else:
                yield PING
        if body.stream_options.include_usage:
            yield answer.chunk([], usage=usage(reply.generations, num_choices_per_prompt=body.n))
        yield DONE
    except RequestError as error:
        yield error_event(error)
    finally:
        reply.close()


def _new_chunks(reply: Reply, answer: Answer) -> Sequence[bytes]:
    chunks = []
    for piece in reply.read():
        for choice in answer.stream_choices(piece):
            fields = {} if choice["finish_reason"] is None else {"timings": timings(reply.generations[piece.choice])}
            chunks.append(answer.chunk([choice], **fields))
    return chunks
