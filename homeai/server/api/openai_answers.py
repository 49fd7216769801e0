"""Answers of /v1/chat/completions and /v1/completions: whole objects, stream chunks, usage, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, TypedDict, Unpack

import msgspec

from homeai.errors import RequestError
from homeai.request import FinishReason, SampledToken
from homeai.server.api.respond import Value
from homeai.server.client import Generation
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result
from homeai.server.shapes import openai_error

DONE: Final = b"data: [DONE]\n\n"
REASONS: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def event(data: Value) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def usage(generations: Sequence[Generation], *, num_choices_per_prompt: int) -> Value:
    """A prompt counts once, however many choices were drawn for it."""
    prompts = generations[::num_choices_per_prompt]
    num_prompt = sum(len(g.add.prompt_token_ids) for g in prompts)
    num_output = sum(g.num_output_tokens for g in generations)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": sum(g.num_cached_tokens for g in prompts)},
    }


def timings(generation: Generation) -> Value:
    """llama-server's object: what this generation took, in milliseconds."""
    first, last = generation.first_token_at, generation.last_token_at
    started = generation.started_at
    prompt_s = first - started if first is not None and started is not None else 0.0
    predicted_s = last - first if first is not None and last is not None else 0.0
    num_cached, num_predicted = generation.num_cached_tokens, generation.num_output_tokens
    num_prompt = len(generation.add.prompt_token_ids) - num_cached
    return {
        "cache_n": num_cached,
        "prompt_n": num_prompt,
        "prompt_ms": prompt_s * 1e3,
        "prompt_per_token_ms": prompt_s * 1e3 / num_prompt,
        "prompt_per_second": num_prompt / prompt_s if prompt_s > 0 else 0.0,
        "predicted_n": num_predicted,
        "predicted_ms": predicted_s * 1e3,
        "predicted_per_token_ms": predicted_s * 1e3 / max(1, num_predicted - 1),
        "predicted_per_second": (num_predicted - 1) / predicted_s if predicted_s > 0 else 0.0,
    }


class Options(TypedDict, total=False):
    """Of an `Answer`. `n` choices were drawn for each prompt; `include_usage` is said at the end of a stream."""

    n: int
    wants_logprobs: bool
    include_usage: bool


class Answer:
    """What both endpoints' objects share: one id, one instant, one model name."""

    content_type = "text/event-stream"
    ping: bytes | None = b":\n\n"
    kind: str
    chunk_kind: str
    id_prefix: str

    def __init__(self, reply: Reply, request_id: str, **options: Unpack[Options]) -> None:
        self._reply = reply
        self.text = reply.text
        self._n = options.get("n", 1)
        self._wants_logprobs = options.get("wants_logprobs", False)
        self._include_usage = options.get("include_usage", False)
        self._id = f"{self.id_prefix}-{request_id}"
        self._created = int(time.time())

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        chunks = []
        for piece in pieces:
            for choice in self.stream_choices(piece):
                is_last = choice["finish_reason"] is not None
                fields = {"timings": timings(self._reply.generations[piece.choice])} if is_last else {}
                chunks.append(event(self._object(self.chunk_kind, [choice]) | fields))
        return b"".join(chunks)

    def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        return event(self._object(self.chunk_kind, []) | {"usage": self._usage()}) + DONE

    def error(self, error: RequestError) -> bytes:
        return event(openai_error(error))

    def whole(self, results: Sequence[Result]) -> Value:
        choices = [self.choice(index, result) for index, result in enumerate(results)]
        fields: Value = {"usage": self._usage(), "timings": timings(self._reply.generations[0])}
        return self._object(self.kind, choices) | fields

    def stream_choices(self, piece: Piece) -> list[Value]:
        """The choices of the chunks for one piece: its text, then, alone, its end."""
        raise NotImplementedError

    def choice(self, index: int, result: Result) -> Value:
        """A choice of the whole object."""
        raise NotImplementedError

    def _object(self, kind: str, choices: list[Value]) -> Value:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.text.name,
            "choices": choices,
        }

    def _usage(self) -> Value:
        return usage(self._reply.generations, num_choices_per_prompt=self._n)


class ChatAnswer(Answer):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, reply: Reply, request_id: str, **options: Unpack[Options]) -> None:
        super().__init__(reply, request_id, **options)
        self._begun: set[int] = set()

    def stream_choices(self, piece: Piece) -> list[Value]:
        choices = []
        if piece.text or piece.choice not in self._begun:
            delta: Value = {"content": piece.text}
            if piece.choice not in self._begun:
                self._begun.add(piece.choice)
                delta = {"role": "assistant"} | delta
            choices.append(self._stream_choice(piece.choice, delta, piece.tokens, None))
        if piece.finish_reason is not None:
            choices.append(self._stream_choice(piece.choice, {}, (), piece.finish_reason))
        return choices

    def _stream_choice(
        self, index: int, delta: Value, tokens: Sequence[SampledToken], reason: FinishReason | None
    ) -> Value:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": REASONS[reason] if reason else None,
        }

    def choice(self, index: int, result: Result) -> Value:
        return {
            "index": index,
            "message": {"role": "assistant", "content": result.content},
            "logprobs": self._logprobs(result.tokens),
            "finish_reason": REASONS[result.finish_reason],
        }

    def _logprobs(self, tokens: Sequence[SampledToken]) -> Value | None:
        if not self._wants_logprobs:
            return None
        return {"content": [self._logprob(token) for token in tokens]}

    def _logprob(self, token: SampledToken) -> Value:
        return self._entry(token.token_id, token.logprob) | {
            "top_logprobs": [self._entry(top.token_id, top.logprob) for top in token.top_logprobs]
        }

    def _entry(self, token_id: int, logprob: float | None) -> Value:
        return {
            "token": self.text.token_text(token_id),
            "logprob": logprob,
            "bytes": list(self.text.piece(token_id)),
        }


class CompletionAnswer(Answer):
    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, reply: Reply, request_id: str, **options: Unpack[Options]) -> None:
        super().__init__(reply, request_id, **options)
        self._offset: dict[int, int] = {}

    def stream_choices(self, piece: Piece) -> list[Value]:
        choices = []
        if piece.text:
            choices.append(self._choice(piece.choice, piece.text, piece.tokens, None))
        if piece.finish_reason is not None:
            choices.append(self._choice(piece.choice, "", (), piece.finish_reason))
        return choices

    def choice(self, index: int, result: Result) -> Value:
        return self._choice(index, result.content, result.tokens, result.finish_reason)

    def _choice(self, index: int, text: str, tokens: Sequence[SampledToken], reason: FinishReason | None) -> Value:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, tokens) if tokens else None,
            "finish_reason": REASONS[reason] if reason else None,
        }

    def _logprobs(self, index: int, tokens: Sequence[SampledToken]) -> Value | None:
        if not self._wants_logprobs:
            return None
        texts = [self.text.token_text(token.token_id) for token in tokens]
        offsets = []
        offset = self._offset.get(index, 0)
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offset[index] = offset
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {self.text.token_text(top.token_id): top.logprob for top in token.top_logprobs} for token in tokens
            ],
            "text_offset": offsets,
        }
