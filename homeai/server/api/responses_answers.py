"""Answers of /v1/responses: the response object, and the events of its growth, numbered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from homeai.errors import PromptTooLong, QueueTimeout, RequestError, TooManyRequests
from homeai.request import FinishReason, SampledToken, TokenLogprob
from homeai.server.api.respond import Value
from homeai.server.api.responses_bodies import ResponsesBody
from homeai.server.api.responses_output import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    CustomOutput,
    Event,
    FunctionOutput,
    MessageOutput,
    OutputItem,
    ReasoningOutput,
    SummaryOutput,
)
from homeai.server.api.responses_tools import Toolbox
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result
from homeai.server.text import Text


class ResponseAnswer:
    """One response. A stream ends with it, whole; there is no [DONE]."""

    content_type = "text/event-stream"

    def __init__(self, reply: Reply, request_id: str, body: ResponsesBody, box: Toolbox) -> None:
        self._reply = reply
        self._created_at = int(time.time())
        self._fixed = _fixed_fields(f"resp_{request_id}", self._created_at, reply.text.name, body)
        self._output = Output(reply.text, request_id, box, body)
        self._num_events = 0

    @property
    def ping(self) -> bytes | None:
        """That it is under way, said again: Codex, for one, does not take a comment for a sign of life."""
        if not self._num_events:
            return self._begin()
        return self._state(IN_PROGRESS, self._response(IN_PROGRESS))

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        sent = b"" if self._num_events else self._begin()
        for piece in pieces:
            sent += self._encode(self._output.add(piece))
            if piece.finish_reason is not None:
                sent += self._encode(self._output.end(piece.finish_reason))
                status = self._output.status(piece.finish_reason)
                sent += self._state(status, self._ended(status, piece.finish_reason))
        return sent

    def end(self) -> bytes:
        return b""

    def error(self, error: RequestError) -> bytes:
        """In the words that Codex reads."""
        begin = b"" if self._num_events else self._begin()
        return begin + self._state("failed", self._response("failed", error=_failure(error)))

    def whole(self, results: Sequence[Result]) -> Value:
        (result,) = results
        for _ in self._output.add(_piece_of(result)):
            pass
        for _ in self._output.end(result.finish_reason):
            pass
        return self._ended(self._output.status(result.finish_reason), result.finish_reason)

    def _begin(self) -> bytes:
        return self._state("created", self._response(IN_PROGRESS)) + self._state(
            IN_PROGRESS, self._response(IN_PROGRESS)
        )

    def _state(self, name: str, response: Value) -> bytes:
        return self._encode([Event(f"response.{name}", {"response": response})])

    def _encode(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._numbered(event) for event in events])

    def _numbered(self, event: Event) -> bytes:
        data = {"type": event.name, "sequence_number": self._num_events} | event.fields
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (event.name.encode(), msgspec.json.encode(data))

    def _ended(self, status: str, reason: FinishReason) -> Value:
        details = {"reason": "max_output_tokens"} if reason is FinishReason.LENGTH else None
        return self._response(
            status,
            output=self._output.items,
            incomplete_details=details,
            usage=self._usage(),
            completed_at=int(time.time()) if status == COMPLETED else None,
        )

    def _response(self, status: str, **fields: object) -> Value:
        return self._fixed | {"status": status} | fields

    def _usage(self) -> Value:
        generation = self._reply.generations[0]
        num_input, num_output = len(generation.add.prompt_token_ids), generation.num_output_tokens
        return {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": generation.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self._output.num_reasoning_tokens},
            "total_tokens": num_input + num_output,
        }


class Output:
    """The items of an answer: one grows at a time. `items` are those that ended."""

    def __init__(self, text: Text, request_id: str, box: Toolbox, body: ResponsesBody) -> None:
        self._text = text
        self._request_id = request_id
        self._box = box
        self._wants_summary = body.reasoning.wants_summary
        self._wants_logprobs = body.wants_logprobs
        self._open: OutputItem | None = None
        self._num_begun = 0
        self.items: list[Value] = []
        self.num_reasoning_tokens = 0

    def add(self, piece: Piece) -> Iterator[Event]:
        is_text = all(isinstance(part, Content) for part in piece.parts)
        if piece.parts and all(isinstance(part, Reasoning) for part in piece.parts):
            self.num_reasoning_tokens += len(piece.tokens)
        logprobs = [_logprob(self._text, token) for token in piece.tokens] if is_text and self._wants_logprobs else []
        for part in piece.parts:
            yield from self._add(part, logprobs)
            logprobs = []

    def end(self, reason: FinishReason) -> Iterator[Event]:
        """An answer has at least one item: an empty text, if it is nothing else."""
        if not self._num_begun:
            yield from self._begin(MessageOutput(self._next_id))
        yield from self._close(INCOMPLETE if reason is FinishReason.LENGTH else COMPLETED)

    def status(self, reason: FinishReason) -> str:
        """Of the response. With half a call in it, it is not complete."""
        is_whole = reason is not FinishReason.LENGTH and self._num_begun == len(self.items)
        return COMPLETED if is_whole else INCOMPLETE

    def _add(self, part: Part, logprobs: Sequence[Value]) -> Iterator[Event]:
        match part:
            case Content(text):
                if not text:
                    return
                if not isinstance(self._open, MessageOutput):
                    yield from self._begin(MessageOutput(self._next_id))
                assert isinstance(self._open, MessageOutput)
                yield from self._placed(self._open.grow(text, logprobs))
            case Reasoning(text):
                if not isinstance(self._open, ReasoningOutput):
                    kind = SummaryOutput if self._wants_summary else ReasoningOutput
                    yield from self._begin(kind(self._next_id))
                yield from self._grow(text)
            case CallStart(_, call_id, name):
                declared = self._box.find(name)
                call = CustomOutput if declared.kind == "custom" else FunctionOutput
                yield from self._begin(call(self._next_id, call_id, declared))
            case CallArguments(_, text):
                yield from self._grow(text)
            case CallEnd():
                yield from self._end_open(COMPLETED)

    @property
    def _next_id(self) -> str:
        return f"{self._request_id}_{self._num_begun}"

    def _begin(self, item: OutputItem) -> Iterator[Event]:
        yield from self._close(COMPLETED)
        self._open = item
        self._num_begun += 1
        yield from self._placed(item.begin())

    def _grow(self, text: str) -> Iterator[Event]:
        assert self._open is not None, "arguments follow the start of their call"
        yield from self._placed(self._open.grow(text))

    def _close(self, status: str) -> Iterator[Event]:
        """A call is ended by its own end, or never: half a call must not be acted upon."""
        if self._open is not None and not isinstance(self._open, FunctionOutput):
            yield from self._end_open(status)
        self._open = None

    def _end_open(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        assert item is not None, "what ends has begun"
        yield from self._placed(item.end(status))
        self.items.append(item.value(status))

    def _placed(self, events: Iterable[Event]) -> Iterator[Event]:
        for name, fields in events:
            yield Event(name, {"output_index": self._num_begun - 1} | fields)


def _fixed_fields(response_id: str, created_at: int, model: str, body: ResponsesBody) -> Value:
    """All of the object's fields, as they are before anything came: clients check that each is there."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": IN_PROGRESS,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "model": model,
        "instructions": body.instructions,
        "tools": [tool.as_sent for tool in body.tools],
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "text": body.text.as_sent,
        "reasoning": body.reasoning.as_sent,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "metadata": body.metadata,
        "previous_response_id": None,
        "store": False,
        "background": False,
        "service_tier": "default",
    }


def _piece_of(result: Result) -> Piece:
    """A whole answer in one piece: reasoning, text, calls."""
    parts: list[Part] = [Reasoning(result.reasoning)] if result.reasoning else []
    parts += [Content(result.content)] if result.content else []
    for index, call in enumerate(result.calls):
        parts += [CallStart(index, call.call_id, call.name), CallArguments(index, call.arguments), CallEnd(index)]
    return Piece(0, parts, result.tokens, None)


def _failure(error: RequestError) -> Value:
    if isinstance(error, PromptTooLong):
        return {"code": error.code, "message": error.message}
    if isinstance(error, TooManyRequests | QueueTimeout):
        again = f"; try again in {error.retry_after_s:.0f}s" if error.retry_after_s is not None else ""
        return {"code": "rate_limit_exceeded", "message": f"{error.message}{again}"}
    return {"code": "server_error", "message": error.message}


def _logprob(text: Text, token: SampledToken) -> Value:
    top = [_entry(text, other) for other in token.top_logprobs]
    return _entry(text, token) | {"top_logprobs": top}


def _entry(text: Text, token: SampledToken | TokenLogprob) -> Value:
    token_id = token.token_id
    return {"token": text.token_text(token_id), "logprob": token.logprob, "bytes": list(text.piece(token_id))}
