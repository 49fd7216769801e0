"""OpenAI's embeddings. Also without /v1, for base URLs typed short."""

from __future__ import annotations

import base64
from typing import Annotated, ClassVar, Literal, cast

from fastapi import APIRouter
from pydantic import Discriminator, Field, Tag
from starlette.requests import Request
from starlette.responses import Response

from homeai.server.answers import JSON, unless_gone
from homeai.server.api.body import Body, Documents, Integer, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.fields import Name
from homeai.server.api.openai_bodies import TokenIds
from homeai.server.api.respond import Value, noted
from homeai.server.embeddings import MAX_INPUTS, Embedded, Input
from homeai.server.service import Service


def _kind_of_input(value: object) -> str:
    if not isinstance(value, list):
        return "a text"
    return "token ids" if value and isinstance(value[0], int | float) else "many inputs"


def _kind_of_item(value: object) -> str:
    return "token ids" if isinstance(value, list) else "a text"


Item = Annotated[Annotated[str, Tag("a text")] | Annotated[TokenIds, Tag("token ids")], Discriminator(_kind_of_item)]
Inputs = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[TokenIds, Tag("token ids")]
    | Annotated[list[Item], Field(fail_fast=True, max_length=MAX_INPUTS), Tag("many inputs")],
    Discriminator(_kind_of_input),
]


class EmbeddingsBody(Body):
    """POST /v1/embeddings"""

    ignored: ClassVar[frozenset[str]] = frozenset()

    input: Inputs
    model: Name | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    user: str | None = None

    def inputs(self) -> list[Input]:
        """One entry for each vector."""
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [self.input]
        return cast(list[Input], self.input)


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/embeddings", openapi_extra=Documents(EmbeddingsBody))
    @routes.post("/embeddings", include_in_schema=False)
    async def embeddings(request: Request) -> Response:
        """Turn texts into vectors."""
        with service.arriving("/v1/embeddings", caller_of(request)) as arrival:
            body = await read_body(request, EmbeddingsBody)
            service.name_user(arrival, body.user)
            work = service.embed(arrival, body.inputs(), model=body.model, dimensions=body.dimensions)
            embedded = await unless_gone(request.receive, work)
        return noted(JSON(_answer(embedded, body.encoding_format)), arrival)

    return routes


def _answer(embedded: Embedded, encoding: Literal["float", "base64"]) -> Value:
    vectors: list[object] = (
        [base64.b64encode(vector).decode() for vector in embedded.vectors]
        if encoding == "base64"
        else list(embedded.floats)
    )
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)],
        "model": embedded.model,
        "usage": {"prompt_tokens": embedded.num_tokens, "total_tokens": embedded.num_tokens},
    }
