"""llama-server's own API: completion, infill, props, slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai import __version__
from homeai.errors import NotReady, NotSupported
from homeai.request import SamplingParams
from homeai.server.answers import JSON
from homeai.server.api.body import Documents, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.llamacpp_answers import NativeAnswer, settings
from homeai.server.api.llamacpp_bodies import CompletionBody, InfillBody, NativeBody
from homeai.server.api.openai import PROGRESS_S
from homeai.server.api.respond import Value, respond
from homeai.server.arrival import Arrival
from homeai.server.generation import Generation
from homeai.server.reply import Reply
from homeai.server.service import Service
from homeai.server.supervisor import AWAY
from homeai.server.text import Text

NUM_RESERVED = 256  # tokens, for what fills a gap when its client does not say
ANY_SEED = 2**32 - 1  # llama-server's word for "draw one"


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["llama.cpp"])

    @routes.post("/completion", openapi_extra=Documents(CompletionBody))
    async def completion(request: Request) -> Response:
        """Continue a prompt, or several."""
        with service.arriving("/completion", caller_of(request)) as arrival:
            body = await read_body(request, CompletionBody)
            text = await service.text_for(body.model)
            reply = await _complete(arrival, body, [await text.encode_mixed(parts) for parts in body.prompts()])
        return await _respond(request, arrival, body, reply)

    @routes.post("/infill", openapi_extra=Documents(InfillBody))
    async def infill(request: Request) -> Response:
        """Write what stands between two pieces of a text."""
        with service.arriving("/infill", caller_of(request)) as arrival:
            body = await read_body(request, InfillBody)
            wanted = body.wanted_tokens
            text = await service.text_for(body.model)
            prompt = await text.encode_gap(body.gap(), NUM_RESERVED if wanted is None or wanted < 0 else wanted)
            arrival.notes += prompt.notes
            reply = await _complete(arrival, body, [prompt.token_ids])
        return await _respond(request, arrival, body, reply, is_truncated=bool(prompt.notes))

    @routes.get("/props")
    async def props(request: Request) -> Response:
        """What this server is and does."""
        service.authenticate(caller_of(request))
        return JSON(await _props(service))

    @routes.post("/props", include_in_schema=False)
    async def change_props(request: Request) -> Response:
        service.authenticate(caller_of(request))
        raise NotSupported("properties are changed in this server's configuration, not here")

    @routes.get("/slots")
    async def slots(request: Request) -> Response:
        """What runs and what waits, never anybody's text."""
        service.authenticate(caller_of(request))
        if request.query_params.get("fail_on_no_slot") and _num_idle(service) <= 0:
            raise NotReady("no slot is idle", retry_after_s=1.0)
        return JSON(_slots(service))

    @routes.post("/slots/{number}", include_in_schema=False)
    async def slot_action(request: Request, number: int) -> Response:
        service.authenticate(caller_of(request))
        raise NotSupported("slots cannot be saved, restored or erased: the cache is managed here")

    async def _complete(arrival: Arrival, body: NativeBody, prompts: Sequence[list[int]]) -> Reply:
        arrival.notes += body.notes()
        ask = body.ask()
        if body.logit_bias_of_texts:
            biases = await _token_biases(await service.text_for(body.model), body.logit_bias_of_texts)
            sampling = msgspec.structs.replace(ask.sampling, logit_bias=ask.sampling.logit_bias | biases)
            ask = replace(ask, sampling=sampling)
        return await service.complete(arrival, prompts, ask, answer_format=body.answer_format())

    async def _respond(
        request: Request, arrival: Arrival, body: NativeBody, reply: Reply, *, is_truncated: bool = False
    ) -> Response:
        answer = NativeAnswer(
            reply,
            body.ask(),
            fields=body.response_fields,
            returns_tokens=body.return_tokens,
            times_chunks=body.timings_per_token,
            is_truncated=is_truncated,
            wants_progress=body.return_progress and body.stream,
        )
        ping_s = service.config.server.ping_interval_s if body.sse_ping_interval is None else body.sse_ping_interval
        if body.return_progress:
            ping_s = PROGRESS_S
        return await respond(request, arrival, reply, answer, stream=body.stream, ping_s=ping_s)

    return routes


async def _token_biases(text: Text, biases: Mapping[str, float]) -> dict[int, float]:
    """A text's bias is that of each of its tokens."""
    lists = await text.tokenize_each(list(biases), param="logit_bias")
    pairs = zip(lists, biases.values(), strict=True)
    return {token_id: bias for token_ids, bias in pairs for token_id in token_ids}


async def _props(service: Service) -> Value:
    text = await service.text_for(None)
    defaults = settings(SamplingParams(seed=ANY_SEED)) | {"n_predict": -1, "max_tokens": -1}
    return {
        "default_generation_settings": {"n_ctx": text.max_model_len, "params": defaults},
        "total_slots": service.config.scheduler.max_num_seqs,
        "model_alias": text.name,
        "model_path": service.model_file,
        "model_ftype": text.card.quantization,
        "modalities": {"vision": False, "audio": False, "video": False},
        "chat_template": text.template,
        "bos_token": text.bos_text,
        "eos_token": text.eos_text,
        "build_info": f"homeai {__version__}",
        "is_sleeping": service.supervisor.state in AWAY,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
    }


def _num_idle(service: Service) -> int:
    return service.config.scheduler.max_num_seqs - len(service.client.live)


def _slots(service: Service) -> list[Value]:
    """As many as run at most; what runs is in the first ones, what waits has none."""
    n_ctx = service.text.max_model_len if service.text else 0
    live = [generation for generation in service.client.live if generation.started_at is not None]
    num_slots = max(service.config.scheduler.max_num_seqs, len(live))
    busy = [_slot(number, n_ctx) | _work(generation) for number, generation in enumerate(live)]
    return busy + [_slot(number, n_ctx) for number in range(len(live), num_slots)]


def _slot(number: int, n_ctx: int) -> Value:
    return {"id": number, "n_ctx": n_ctx, "speculative": False, "is_processing": False}


def _work(generation: Generation) -> Value:
    add, num_output = generation.add, generation.num_output_tokens
    num_computed = generation.progress.num_computed_tokens if generation.progress else 0
    return {
        "is_processing": True,
        "id_task": add.request_id,
        "n_prompt_tokens": len(add.prompt_token_ids),
        "n_prompt_tokens_processed": min(num_computed, len(add.prompt_token_ids)),
        "n_prompt_tokens_cache": generation.num_cached_tokens,
        "params": settings(add.sampling),
        "next_token": [
            {
                "has_next_token": True,
                "n_remain": add.sampling.max_tokens - num_output,
                "n_decoded": num_output,
            }
        ],
    }
