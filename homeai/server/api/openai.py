"""OpenAI's API: chat completions and completions. Each also without /v1, for base URLs typed short."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import InvalidRequest, NotSupported
from homeai.server.api.body import Documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.openai_answers import Answer, ChatAnswer, CompletionAnswer, FimAnswer, Options
from homeai.server.api.openai_bodies import ChatBody, CompletionBody, FimBody, SamplingBody
from homeai.server.api.respond import respond
from homeai.server.arrival import Arrival
from homeai.server.reply import Reply
from homeai.server.service import Service

PROGRESS_S = 0.25  # between two words about how far a prompt is read


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions", openapi_extra=Documents(ChatBody))
    @routes.post("/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        with service.arriving("/v1/chat/completions", caller_of(request)) as arrival:
            body = await read_body(request, ChatBody)
            reply = await service.chat(arrival, body.chat(), body.ask())
        options = _options(body) | Options(is_legacy=body.is_legacy, thoughts=body.thoughts)
        answer = ChatAnswer(reply, arrival.caller.request_id, **options)
        return await _respond(request, arrival, body, reply, answer)

    @routes.post("/v1/completions", openapi_extra=Documents(CompletionBody))
    @routes.post("/completions", include_in_schema=False)
    async def completions(request: Request) -> Response:
        """Continue a text, or several, or fill the gap in one."""
        with service.arriving("/v1/completions", caller_of(request)) as arrival:
            body = await read_body(request, CompletionBody)
            reply = await _complete(arrival, body)
        answer = CompletionAnswer(reply, arrival.caller.request_id, **_options(body))
        return await _respond(request, arrival, body, reply, answer)

    @routes.post("/v1/fim/completions", openapi_extra=Documents(FimBody))
    @routes.post("/fim/completions", include_in_schema=False)
    async def fim_completions(request: Request) -> Response:
        """Fill the gap in a text, as Mistral's clients ask for it."""
        with service.arriving("/v1/fim/completions", caller_of(request)) as arrival:
            body = await read_body(request, FimBody)
            reply = await _complete(arrival, body)
        answer = FimAnswer(reply, arrival.caller.request_id, **_options(body))
        return await _respond(request, arrival, body, reply, answer)

    @routes.post("/v1/rerank", include_in_schema=False)
    @routes.post("/v1/reranking", include_in_schema=False)
    @routes.post("/rerank", include_in_schema=False)
    @routes.post("/reranking", include_in_schema=False)
    async def rerank(request: Request) -> Response:
        with service.arriving("/v1/rerank", caller_of(request)):
            raise NotSupported("the resident model writes texts; it cannot rank documents")

    async def _complete(arrival: Arrival, body: CompletionBody) -> Reply:
        prompts, ask = body.prompts(), body.ask()
        if body.suffix:
            text = await service.text_for(ask.model)
            prompts = [await text.encode_infill(prompt, body.suffix) for prompt in _texts(prompts)]
        return await service.complete(arrival, prompts, ask, answer_format=body.answer_format())

    async def _respond(
        request: Request, arrival: Arrival, body: SamplingBody, reply: Reply, answer: Answer
    ) -> Response:
        arrival.notes += body.notes()
        ping_s = service.config.server.ping_interval_s if body.sse_ping_interval is None else body.sse_ping_interval
        if body.return_progress:
            ping_s = PROGRESS_S
        return await respond(request, arrival, reply, answer, stream=body.stream, ping_s=ping_s)

    return routes


def _texts(prompts: list[str | list[int]]) -> list[str]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise InvalidRequest("suffix needs a prompt that is a text, not token ids", param="suffix")
    return texts


def _options(body: SamplingBody) -> Options:
    return Options(
        n=body.n,
        wants_logprobs=body.num_logprobs is not None,
        include_usage=bool(body.stream_options.include_usage),
        usage_per_chunk=bool(body.stream_options.continuous_usage_stats),
        timings_per_chunk=body.timings_per_token,
        wants_progress=body.return_progress and body.stream,
        fields=body.response_fields,
    )
