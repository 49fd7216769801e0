"""Answers of /v1/messages: whole messages and the events of a stream, whose blocks follow one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from homeai.errors import RequestError
from homeai.request import FinishReason
from homeai.server.api.respond import Value
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result
from homeai.server.shapes import anthropic_error

SIGNATURE: Final = "homeai"  # clients send a thinking block back only with one; nobody checks it


def event(name: str, **data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name} | data))


class MessageAnswer:
    """One message. `stop_sequences` are the client's, `max_tokens` what it allowed."""

    content_type = "text/event-stream"
    ping: bytes | None = event("ping")

    def __init__(self, reply: Reply, request_id: str, *, stop_sequences: Sequence[str], max_tokens: int) -> None:
        self._reply = reply
        self._request_id = request_id
        self._stop_sequences = stop_sequences
        self._max_tokens = max_tokens
        self._has_begun = False
        self._num_calls = 0  # whole ones
        self._blocks = Blocks()

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        events = []
        for piece in pieces:
            if not self._has_begun:
                self._has_begun = True
                events.append(event("message_start", message=self._message([], None, usage=self._usage(0))))
            for part in piece.parts:
                self._num_calls += isinstance(part, CallEnd)
                events.append(self._blocks.add(part))
            if piece.finish_reason is not None:
                events += [self._blocks.end(), self._delta(piece.finish_reason)]
        return b"".join(events)

    def end(self) -> bytes:
        return event("message_stop")

    def error(self, error: RequestError) -> bytes:
        body = msgspec.json.encode(anthropic_error(error, self._request_id))
        return b"event: error\ndata: %b\n\n" % body

    def whole(self, results: Sequence[Result]) -> Value:
        (result,) = results
        self._num_calls = len(result.calls)
        return self._message(_content(result), self._stop_reason(result.finish_reason), usage=self._usage())

    def _delta(self, reason: FinishReason) -> bytes:
        stop_reason = self._stop_reason(reason)
        delta = {"stop_reason": stop_reason, "stop_sequence": self._stop_sequence(stop_reason)}
        return event("message_delta", delta=delta, usage=self._usage())

    def _message(self, content: list[Value], stop_reason: str | None, *, usage: Value) -> Value:
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._reply.text.name,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": self._stop_sequence(stop_reason),
            "usage": usage,
        }

    def _stop_reason(self, reason: FinishReason) -> str:
        if reason is FinishReason.LENGTH:
            is_full = self._reply.generations[0].num_output_tokens < self._max_tokens
            return "model_context_window_exceeded" if is_full else "max_tokens"
        if self._num_calls:
            return "tool_use"
        return "stop_sequence" if self._reply.stopped_by(0) in self._stop_sequences else "end_turn"

    def _stop_sequence(self, stop_reason: str | None) -> str | None:
        """Never a stop string of ours."""
        return self._reply.stopped_by(0) if stop_reason == "stop_sequence" else None

    def _usage(self, num_output_tokens: int | None = None) -> Value:
        """`input_tokens` are those that had to be computed: the three kinds add up to the prompt."""
        generation = self._reply.generations[0]
        num_cached = generation.num_cached_tokens
        return {
            "input_tokens": len(generation.add.prompt_token_ids) - num_cached,
            "cache_read_input_tokens": num_cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": generation.num_output_tokens if num_output_tokens is None else num_output_tokens,
        }


class Blocks:
    """The content blocks of a stream: one at a time, each begun, grown and closed.

    A call of which the end never came is not closed: half a call must not be acted upon.
    """

    def __init__(self) -> None:
        self._index = -1
        self._open: Literal["text", "thinking", "tool_use"] | None = None

    def add(self, part: Part) -> bytes:
        match part:
            case Content(text):
                return self._turn_to("text") + self._grow("text_delta", text=text) if text else b""
            case Reasoning(text):
                return self._turn_to("thinking") + self._grow("thinking_delta", thinking=text)
            case CallStart(_, call_id, name):
                return self._close() + self._begin("tool_use", id=call_id, name=name, input={})
            case CallArguments(_, text):
                return self._grow("input_json_delta", partial_json=text)
            case CallEnd():
                self._open = None
                return event("content_block_stop", index=self._index)

    def end(self) -> bytes:
        """Clients read the first block of an answer: an empty one is there, too."""
        return self._close() if self._index >= 0 else self._turn_to("text") + self._close()

    def _turn_to(self, kind: Literal["text", "thinking"]) -> bytes:
        if self._open == kind:
            return b""
        fields: Value = {"text": ""} if kind == "text" else {"thinking": "", "signature": ""}
        return self._close() + self._begin(kind, **fields)

    def _begin(self, kind: Literal["text", "thinking", "tool_use"], **fields: object) -> bytes:
        self._index += 1
        self._open = kind
        return event("content_block_start", index=self._index, content_block={"type": kind} | fields)

    def _grow(self, kind: str, **fields: object) -> bytes:
        return event("content_block_delta", index=self._index, delta={"type": kind} | fields)

    def _close(self) -> bytes:
        kind, self._open = self._open, None
        if kind is None or kind == "tool_use":
            return b""
        signature = self._grow("signature_delta", signature=SIGNATURE) if kind == "thinking" else b""
        return signature + event("content_block_stop", index=self._index)


def _content(result: Result) -> list[Value]:
    blocks: list[Value] = []
    if result.reasoning:
        blocks.append({"type": "thinking", "thinking": result.reasoning, "signature": SIGNATURE})
    if result.content:
        blocks.append({"type": "text", "text": result.content})
    blocks += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": msgspec.json.decode(call.arguments)}
        for call in result.calls
    ]
    return blocks or [{"type": "text", "text": ""}]
