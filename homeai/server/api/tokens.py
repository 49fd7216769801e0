"""Text ↔ tokens without generating: llama-server's shapes, and vLLM's where a body is like one of its own.

| path            | llama-server                       | vLLM                                                     |
|-----------------|------------------------------------|----------------------------------------------------------|
| /tokenize       | {content} → {tokens}               | {prompt} or {messages} → {count, max_model_len, tokens}  |
| /detokenize     | {tokens} → {content}               | {tokens} → {prompt}: both names are in the answer        |
| /apply-template | {messages, tools, …} → {prompt}    |                                                          |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from homeai.server.answers import JSON
from homeai.server.api.body import Body, Documents, Refused, read_body
from homeai.server.api.caller import caller_of
from homeai.server.api.fields import Name
from homeai.server.api.llamacpp_bodies import OnePrompt
from homeai.server.api.openai_bodies import ChatBody, TokenIds
from homeai.server.api.respond import Value
from homeai.server.service import Service
from homeai.server.text import Text


class TokenizeBody(Body):
    """POST /tokenize, in llama-server's words."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    content: OnePrompt
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False

    @property
    def parts(self) -> Sequence[str | int]:
        return [self.content] if isinstance(self.content, str) else self.content


class PromptTokenizeBody(Body):
    """POST /tokenize, in vLLM's words, of a text."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    model: Name | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class ChatTokenizeBody(ChatBody):
    """POST /tokenize, in vLLM's words, of a chat."""

    ignored: ClassVar[frozenset[str]] = ChatBody.ignored | {
        "add_special_tokens",
        "mm_processor_kwargs",
    }

    return_token_strs: bool = False
    chat_template: Refused = None


class DetokenizeBody(Body):
    """POST /detokenize"""

    ignored: ClassVar[frozenset[str]] = frozenset()

    model: Name | None = None
    tokens: TokenIds


class AnyTokenizeBody(Body):
    """Which of the three bodies of /tokenize it is."""

    prompt: object = None
    messages: object = None


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["llama.cpp"])

    @routes.post("/tokenize", openapi_extra=Documents(TokenizeBody, PromptTokenizeBody, ChatTokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The tokens of a text or a chat."""
        with service.arriving("/tokenize", caller_of(request)) as arrival:
            service.check_limits(arrival)
            given = await read_body(request, AnyTokenizeBody)
            if given.messages is not None:
                return JSON(await _of_chat(await read_body(request, ChatTokenizeBody)))
            if given.prompt is not None:
                return JSON(await _of_prompt(await read_body(request, PromptTokenizeBody)))
            return JSON(await _of_content(await read_body(request, TokenizeBody)))

    async def _of_content(body: TokenizeBody) -> Value:
        text = await service.text_for(None)
        token_ids = await text.tokenize(
            body.parts, add_special=body.add_special, parse_special=body.parse_special, param="content"
        )
        if not body.with_pieces:
            return {"tokens": token_ids}
        return {"tokens": await text.run(len(token_ids), lambda: _with_pieces(text, token_ids))}

    async def _of_prompt(body: PromptTokenizeBody) -> Value:
        text = await service.text_for(body.model)
        token_ids = await text.tokenize([body.prompt], add_special=body.add_special_tokens, param="prompt")
        return await _counted(text, token_ids, shows=body.return_token_strs)

    async def _of_chat(body: ChatTokenizeBody) -> Value:
        text = await service.text_for(body.model)
        return await _counted(text, await text.encode_chat(body.chat()), shows=body.return_token_strs)

    @routes.post("/detokenize", openapi_extra=Documents(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        with service.arriving("/detokenize", caller_of(request)) as arrival:
            service.check_limits(arrival)
            body = await read_body(request, DetokenizeBody)
            text = await service.text_for(body.model)
            shown = await text.run(len(body.tokens), lambda: text.detokenize(body.tokens))
        return JSON({"content": shown, "prompt": shown})

    @routes.post("/apply-template", openapi_extra=Documents(ChatBody))
    async def apply_template(request: Request) -> Response:
        """The prompt that a chat becomes."""
        with service.arriving("/apply-template", caller_of(request)) as arrival:
            service.check_limits(arrival)
            body = await read_body(request, ChatBody)
            text = await service.text_for(body.model)
            prompt = await text.render_chat(body.chat())
        return JSON({"prompt": prompt})

    return routes


async def _counted(text: Text, token_ids: list[int], *, shows: bool) -> Value:
    strings = await text.run(len(token_ids), lambda: list(map(text.token_text, token_ids))) if shows else None
    return {
        "count": len(token_ids),
        "max_model_len": text.max_model_len,
        "tokens": token_ids,
        "token_strs": strings,
    }


def _with_pieces(text: Text, token_ids: list[int]) -> list[Value]:
    return [{"id": token_id, "piece": _piece(text.token_bytes(token_id))} for token_id in token_ids]


def _piece(piece: bytes) -> str | list[int]:
    """Half a character is told by its bytes."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
