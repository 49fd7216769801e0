"""Answers of /v1/chat/completions and /v1/completions: whole objects, stream chunks, usage, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, TypedDict, Unpack

import msgspec

from homeai.errors import RequestError
from homeai.request import FinishReason, SampledToken
from homeai.server.api.openai_deltas import REASONS, ChatDeltas, Thoughts, finish_reason, message
from homeai.server.api.respond import Value
from homeai.server.generation import Generation
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result
from homeai.server.shapes import openai_error
from homeai.server.text import Text

DONE: Final = b"data: [DONE]\n\n"
MISSING: Final = object()


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
        "prompt_per_token_ms": prompt_s * 1e3 / max(1, num_prompt),
        "prompt_per_second": num_prompt / prompt_s if prompt_s > 0 else 0.0,
        "predicted_n": num_predicted,
        "predicted_ms": predicted_s * 1e3,
        "predicted_per_token_ms": predicted_s * 1e3 / max(1, num_predicted - 1),
        "predicted_per_second": (num_predicted - 1) / predicted_s if predicted_s > 0 else 0.0,
    }


def prompt_progress(generation: Generation, *, is_read: bool) -> Value:
    """llama-server's object: how far a prompt is read."""
    total = len(generation.add.prompt_token_ids)
    progress, started = generation.progress, generation.started_at
    num_read = total if is_read else min(total, progress.num_computed_tokens) if progress else 0
    return {
        "total": total,
        "cache": generation.num_cached_tokens,
        "processed": num_read,
        "time_ms": 0 if started is None else int((time.monotonic() - started) * 1e3),
    }


class Options(TypedDict, total=False):
    """Of an `Answer`. `n` choices were drawn for each prompt; `include_usage` is said at the end of a stream.

    `is_legacy`: calls are told as `function_call`. `thoughts`: where reasoning goes. `fields`: of a whole answer,
    these and no others, as paths ("usage/total_tokens").
    """

    n: int
    wants_logprobs: bool
    include_usage: bool
    usage_per_chunk: bool
    timings_per_chunk: bool
    wants_progress: bool
    is_legacy: bool
    thoughts: Thoughts
    fields: Sequence[str]


class Answer:
    """What both endpoints' objects share: one id, one instant, one model name."""

    content_type = "text/event-stream"
    kind: str
    chunk_kind: str
    id_prefix: str

    def __init__(self, reply: Reply, request_id: str, **options: Unpack[Options]) -> None:
        self._reply = reply
        self._n = options.get("n", 1)
        self._wants_logprobs = options.get("wants_logprobs", False)
        self._include_usage = options.get("include_usage", False)
        self._usage_per_chunk = options.get("usage_per_chunk", False)
        self._timings_per_chunk = options.get("timings_per_chunk", False)
        self._wants_progress = options.get("wants_progress", False)
        self._fields = options.get("fields", ())
        self._id = f"{self.id_prefix}-{request_id}"
        self._created = int(time.time())

    @property
    def text(self) -> Text:
        """Of the model that answers: it may become another one while the request waits."""
        return self._reply.text

    @property
    def ping(self) -> bytes | None:
        """A comment, or how far the prompt is read, until its first token."""
        return self._progress() if self._wants_progress else b":\n\n"

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        chunks = []
        if self._wants_progress:  # once more, whole: a short prompt may have been read in no time
            chunks.append(self._progress(is_read=True))
            self._wants_progress = False
        for piece in pieces:
            for choice in self.stream_choices(piece):
                fields: Value = {}
                if self._timings_per_chunk or choice["finish_reason"] is not None:
                    fields["timings"] = timings(self._reply.generations[piece.choice])
                if self._usage_per_chunk:
                    fields["usage"] = self._usage()
                chunks.append(event(self._object(self.chunk_kind, [choice]) | fields))
        return b"".join(chunks)

    def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        fields: Value = {"usage": self._usage(), "timings": timings(self._reply.generations[0])}
        return event(self._object(self.chunk_kind, []) | fields) + DONE

    def error(self, error: RequestError) -> bytes:
        return event(openai_error(error))

    def whole(self, results: Sequence[Result]) -> Value:
        choices = [self.choice(index, result) for index, result in enumerate(results)]
        fields: Value = {"usage": self._usage(), "timings": timings(self._reply.generations[0])}
        answer = self._object(self.kind, choices) | fields
        return selected(answer, self._fields) if self._fields else answer

    def stream_choices(self, piece: Piece) -> list[Value]:
        """The choices of the chunks for one piece: its text, then, alone, its end."""
        raise NotImplementedError

    def choice(self, index: int, result: Result) -> Value:
        """A choice of the whole object."""
        raise NotImplementedError

    def empty_choice(self) -> Value:
        """Of a chunk that brings no text yet."""
        raise NotImplementedError

    def _progress(self, *, is_read: bool = False) -> bytes:
        """Of the first generation."""
        told = prompt_progress(self._reply.generations[0], is_read=is_read)
        return event(self._object(self.chunk_kind, [self.empty_choice()]) | {"prompt_progress": told})

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
        self._is_legacy = options.get("is_legacy", False)
        self._thoughts = options.get("thoughts", "apart")
        self._deltas: dict[int, ChatDeltas] = {}
        self._held: dict[int, list[SampledToken]] = {}  # until there is a chunk to go with

    def stream_choices(self, piece: Piece) -> list[Value]:
        index, tokens = piece.choice, piece.tokens
        deltas = self._deltas.get(index)
        if deltas is None:
            deltas = self._deltas[index] = ChatDeltas(self._thoughts, is_legacy=self._is_legacy)
        if held := self._held.pop(index, None):
            tokens = held + tokens
        choices = []
        for delta in deltas.of(piece.parts, is_last=piece.finish_reason is not None):
            choices.append(self._stream_choice(index, delta, tokens, None))
            tokens = []
        if piece.finish_reason is not None:
            reason = finish_reason(piece.finish_reason, has_calls=deltas.has_calls, is_legacy=self._is_legacy)
            choices.append(self._stream_choice(index, {}, tokens, reason))
        elif tokens:
            self._held[index] = tokens
        return choices

    def empty_choice(self) -> Value:
        return self._stream_choice(0, {"role": "assistant", "content": None}, (), None)

    def _stream_choice(self, index: int, delta: Value, tokens: Sequence[SampledToken], reason: str | None) -> Value:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": reason,
        }

    def choice(self, index: int, result: Result) -> Value:
        return {
            "index": index,
            "message": message(result, self._thoughts, is_legacy=self._is_legacy),
            "logprobs": self._logprobs(result.tokens),
            "finish_reason": finish_reason(
                result.finish_reason, has_calls=bool(result.calls), is_legacy=self._is_legacy
            ),
        }

    def _logprobs(self, tokens: Sequence[SampledToken]) -> Value | None:
        if not self._wants_logprobs:
            return None
        return {"content": [self._logprob(token) for token in tokens], "refusal": None}

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


class FimAnswer(ChatAnswer):
    """Mistral's: what fills a gap, told like a chat's answer."""

    id_prefix = "fim"


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

    def empty_choice(self) -> Value:
        return self._choice(0, "", (), None)

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


def selected(answer: Value, paths: Iterable[str]) -> Value:
    """What of the answer lies at these paths, by path. Those that lead nowhere are left out."""
    found: Value = {}
    for path in paths:
        value: object = answer
        for key in path.split("/"):
            value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        if value is not MISSING:
            found[path] = value
    return found
