"""Answers of /api/chat and /api/generate: a line of JSON for each piece, the last one with counts and durations.

    {"model", "created_at", "message": {"role", "content", "thinking"?, "tool_calls"?}, "done": false}
    {"model", "created_at", "message": {"role", "content": ""}, "done": true, "done_reason", "total_duration", …}

Clients read every line as JSON, so there are no blank lines and no pings. A call of a tool is sent once it is whole.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from homeai.errors import RequestError
from homeai.request import FinishReason, SampledToken
from homeai.server.api.respond import Value
from homeai.server.embeddings import Embedded
from homeai.server.generation import Generation
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Reasoning
from homeai.server.reply import Piece, Reply
from homeai.server.result import Call, Result
from homeai.server.shapes import ollama_error

CONTENT_TYPE: Final = "application/x-ndjson"
REASONS: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def line(data: Value) -> bytes:
    return msgspec.json.encode(data) + b"\n"


def timestamp(instant: datetime.datetime | None = None) -> str:
    """RFC 3339 in UTC, ending in Z: now, unless an instant is given."""
    instant = instant or datetime.datetime.now(datetime.UTC)
    return instant.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def counts(generation: Generation, ended_at: float) -> Value:
    """Token counts, and durations in nanoseconds: in the queue, in the prompt, in the answer, altogether."""
    arrived = generation.add.arrival_at
    started = generation.started_at or ended_at
    first = generation.first_token_at or ended_at
    return {
        "total_duration": _ns(ended_at - arrived),
        "load_duration": _ns(started - arrived),
        "prompt_eval_count": len(generation.add.prompt_token_ids),
        "prompt_eval_duration": _ns(first - started),
        "eval_count": generation.num_output_tokens,
        "eval_duration": _ns(ended_at - first),
    }


def empty_chat(model: str, reason: str) -> Value:
    """The answer to a body without a question: "load" or "unload"."""
    return _line(model, {"message": _message("")}) | {"done": True, "done_reason": reason}


def empty_text(model: str, reason: str) -> Value:
    return _line(model, {"response": ""}) | {"done": True, "done_reason": reason}


def embeddings(model: str | None, embedded: Embedded, duration_s: float) -> Value:
    """The answer of /api/embed."""
    return {
        "model": model or embedded.model,
        "embeddings": embedded.floats,
        "total_duration": _ns(duration_s),
        "load_duration": 0,
        "prompt_eval_count": embedded.num_tokens,
    }


class Answer:
    """What both endpoints' answers share. `model` is the name that the client asked for."""

    content_type = CONTENT_TYPE
    ping: bytes | None = None

    def __init__(self, reply: Reply, model: str, *, wants_logprobs: bool = False) -> None:
        self._reply = reply
        self._model = model
        self._wants_logprobs = wants_logprobs
        self._calls: dict[int, Call] = {}  # begun
        self._held: list[SampledToken] = []  # until there is a line to tell them with
        self._reason = FinishReason.STOP

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join([line(data) for piece in pieces for data in self._lines(piece)])

    def end(self) -> bytes:
        return line(self._last(self._fields("", "", []), self._take_held()))

    def error(self, error: RequestError) -> bytes:
        return line(ollama_error(error))

    def whole(self, results: Sequence[Result]) -> Value:
        (result,) = results
        self._reason = result.finish_reason
        calls = [tool_call(index, call) for index, call in enumerate(result.calls)]
        return self._last(self._fields(result.content, result.reasoning, calls), result.tokens)

    def _lines(self, piece: Piece) -> Iterable[Value]:
        """At most one: all that the piece brought."""
        self._held += piece.tokens
        self._reason = piece.finish_reason or self._reason
        content = thinking = ""
        calls = []
        for part in piece.parts:
            match part:
                case Content(text):
                    content += text
                case Reasoning(text):
                    thinking += text
                case CallStart(index, call_id, name):
                    self._calls[index] = Call(call_id, name)
                case CallArguments(index, text):
                    self._calls[index].arguments += text
                case CallEnd(index):
                    calls.append(tool_call(index, self._calls.pop(index)))
        if content or thinking or calls:
            fields = self._fields(content, thinking, calls)
            yield _line(self._model, fields) | self._logprobs(self._take_held()) | {"done": False}

    def _fields(self, content: str, thinking: str, calls: list[Value]) -> Value:
        """What was said, where this endpoint puts it."""
        raise NotImplementedError

    def _last(self, fields: Value, tokens: Sequence[SampledToken]) -> Value:
        ending = {"done": True, "done_reason": REASONS[self._reason]}
        (generation,) = self._reply.generations
        return _line(self._model, fields) | self._logprobs(tokens) | ending | counts(generation, time.monotonic())

    def _take_held(self) -> list[SampledToken]:
        tokens, self._held = self._held, []
        return tokens

    def _logprobs(self, tokens: Sequence[SampledToken]) -> Value:
        if not self._wants_logprobs or not tokens:
            return {}
        return {"logprobs": [self._logprob(token) for token in tokens]}

    def _logprob(self, token: SampledToken) -> Value:
        tops = [self._entry(top.token_id, top.logprob) for top in token.top_logprobs]
        return self._entry(token.token_id, token.logprob) | ({"top_logprobs": tops} if tops else {})

    def _entry(self, token_id: int, logprob: float | None) -> Value:
        text = self._reply.text
        return {"token": text.token_text(token_id), "logprob": logprob, "bytes": list(text.piece(token_id))}


class ChatAnswer(Answer):
    """POST /api/chat"""

    def _fields(self, content: str, thinking: str, calls: list[Value]) -> Value:
        message: Value = _message(content)
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class TextAnswer(Answer):
    """POST /api/generate"""

    def _fields(self, content: str, thinking: str, calls: list[Value]) -> Value:
        fields: Value = {"response": content}
        return fields | {"thinking": thinking} if thinking else fields


def tool_call(index: int, call: Call) -> Value:
    """A whole call; its arguments are an object, unlike OpenAI's."""
    arguments = json.loads(call.arguments)
    return {"id": call.call_id, "function": {"index": index, "name": call.name, "arguments": arguments}}


def _message(content: str) -> Value:
    return {"role": "assistant", "content": content}


def _line(model: str, fields: Value) -> Value:
    return {"model": model, "created_at": timestamp(), **fields}


def _ns(seconds: float) -> int:
    """At least 1: clients divide by it."""
    return max(1, round(seconds * 1e9))
