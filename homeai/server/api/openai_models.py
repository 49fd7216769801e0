"""The resident model as OpenAI's, Anthropic's and LM Studio's clients look for it: one object that all of them read."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.errors import ModelNotFound
from homeai.server.answers import JSON
from homeai.server.api.caller import caller_of
from homeai.server.api.respond import Value
from homeai.server.service import Service
from homeai.server.text import Text


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["Models"])

    def listed(request: Request) -> list[Text]:
        service.authenticate(caller_of(request))
        return [service.text] if service.text else []

    def found(request: Request, name: str) -> Text:
        for text in listed(request):
            if text.knows(name):
                return text
        raise ModelNotFound(f"model {name!r} does not exist", param="model")

    @routes.get("/v1/models")
    @routes.get("/models", include_in_schema=False)
    async def models(request: Request) -> Response:
        """The resident model."""
        data = [_model(text) for text in listed(request)]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return JSON({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": False})

    @routes.get("/v1/models/{name:path}")
    @routes.get("/models/{name:path}", include_in_schema=False)
    async def model(request: Request, name: str) -> Response:
        """It, if it answers to this name."""
        return JSON(_model(found(request, name)))

    @routes.get("/api/v0/models")
    async def lm_studio_models(request: Request) -> Response:
        """The resident model, in LM Studio's words."""
        return JSON({"object": "list", "data": [_lm_studio_model(service, text) for text in listed(request)]})

    @routes.get("/api/v0/models/{name:path}")
    async def lm_studio_model(request: Request, name: str) -> Response:
        """It, in LM Studio's words, if it answers to this name."""
        return JSON(_lm_studio_model(service, found(request, name)))

    return routes


def _model(text: Text) -> Value:
    """llama.vscode takes a server for llama.cpp's by `owned_by`, or `meta`. `created` is when the file was made."""
    created_at = text.card.modified_at
    return {
        "id": text.name,
        "object": "model",
        "type": "model",
        "created": int(created_at.timestamp()),
        "created_at": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "display_name": text.name,
        "owned_by": "llamacpp",
        "root": text.name,
        "parent": None,
        "aliases": list(text.aliases),
        "max_model_len": text.max_model_len,
        "max_input_tokens": text.max_model_len - 1,
        "max_tokens": text.max_model_len,
        "meta": {
            "n_ctx": text.max_model_len,
            "n_ctx_train": text.n_ctx_train,
            "n_vocab": text.num_vocab_tokens,
            "n_params": text.card.num_params,
            "size": text.card.size_bytes,
        },
    }


def _lm_studio_model(service: Service, text: Text) -> Value:
    return {
        "id": text.name,
        "object": "model",
        "type": "llm",
        "publisher": "homeai",
        "arch": text.card.architecture,
        "compatibility_type": text.card.file_format,
        "quantization": text.card.quantization,
        "state": "loaded" if service.supervisor.ready else "not-loaded",
        "max_context_length": text.max_model_len,
        "loaded_context_length": text.max_model_len,
    }
