"""Answers of llama-server's own API: whole objects and stream events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from homeai.errors import RequestError
from homeai.request import FinishReason, SampledToken, SamplingParams
from homeai.server.api.llamacpp_bodies import NEUTRAL
from homeai.server.api.openai_answers import event, prompt_progress, selected, timings
from homeai.server.api.respond import Value
from homeai.server.ask import Ask
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result
from homeai.server.shapes import llamacpp_error

NO_SLOT: Final = -1  # requests have no fixed seat here


def settings(sampling: SamplingParams) -> Value:
    """llama-server's names for how tokens are drawn. What it can do and we do not is off, and said to be."""
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "top_n_sigma": -1.0,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "mirostat": 0,
        "max_tokens": sampling.max_tokens,
        "n_predict": sampling.max_tokens,
        "ignore_eos": sampling.ignore_eos,
        "n_probs": sampling.logprobs or 0,
        "samplers": list(NEUTRAL),
    }


@dataclass(slots=True)
class _Choice:
    """What a stream's last event says of its earlier ones."""

    num_tokens: int = 0
    has_new_line: bool = False


@dataclass(slots=True)
class NativeAnswer:
    """`fields` of the last event, or of the whole answer: these and no others, as paths ("timings/prompt_n")."""

    reply: Reply
    ask: Ask
    fields: Sequence[str] = ()
    returns_tokens: bool = False
    times_chunks: bool = False
    is_truncated: bool = False  # some of the prompt was left out
    wants_progress: bool = False  # of the prompt, in a stream, until its first token
    content_type: str = "text/event-stream"
    _choices: list[_Choice] = field(init=False)

    def __post_init__(self) -> None:
        self._choices = [_Choice() for _ in self.reply.generations]

    @property
    def ping(self) -> bytes | None:
        return self._progress() if self.wants_progress else b":\n\n"

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        progress = self._progress(is_read=True) if self.wants_progress else b""
        self.wants_progress = False
        return progress + b"".join(self._events(pieces))

    def end(self) -> bytes:
        return b""

    def error(self, error: RequestError) -> bytes:
        return event(llamacpp_error(error))

    def whole(self, results: Sequence[Result]) -> object:
        """One object, or a list of them where there are several choices or prompts."""
        answers = [self._whole(index, result) for index, result in enumerate(results)]
        return answers if len(answers) > 1 else answers[0]

    def _whole(self, index: int, result: Result) -> Value:
        tokens = [token.token_id for token in result.tokens] if self.returns_tokens else []
        answer = self._last(index, result.finish_reason, result.content, tokens, "\n" in result.content)
        return self._selected(answer | self._probabilities(result.tokens))

    def _progress(self, *, is_read: bool = False) -> bytes:
        """Of the first generation."""
        progress = {"prompt_progress": prompt_progress(self.reply.generations[0], is_read=is_read)}
        return event(self._part(Piece(0, [], [], None), "", 0) | progress)

    def _events(self, pieces: Iterable[Piece]) -> Iterable[bytes]:
        for piece in pieces:
            choice = self._choices[piece.choice]
            text = piece.text
            choice.num_tokens += len(piece.tokens)
            choice.has_new_line = choice.has_new_line or "\n" in text
            if text:
                yield event(self._part(piece, text, choice.num_tokens))
            if piece.finish_reason is not None:
                yield event(self._selected(self._last(piece.choice, piece.finish_reason, "", [], choice.has_new_line)))

    def _part(self, piece: Piece, text: str, num_tokens: int) -> Value:
        generation = self.reply.generations[piece.choice]
        part: Value = {
            "index": piece.choice,
            "content": text,
            "tokens": [token.token_id for token in piece.tokens],
            "stop": False,
            "id_slot": NO_SLOT,
            "tokens_predicted": num_tokens,
            "tokens_evaluated": len(generation.add.prompt_token_ids),
        }
        if self.times_chunks:
            part["timings"] = timings(generation)
        return part | self._probabilities(piece.tokens)

    def _last(self, index: int, reason: FinishReason, content: str, tokens: list[int], has_new_line: bool) -> Value:
        generation, text = self.reply.generations[index], self.reply.text
        prompt, num_predicted = generation.add.prompt_token_ids, generation.num_output_tokens
        stopped_by = self.reply.stopped_by(index)
        is_limit = reason is FinishReason.LENGTH or self.reply.is_cut(index)
        kind = "limit" if is_limit else "word" if stopped_by else "eos"
        return {
            "index": index,
            "content": content,
            "tokens": tokens,
            "id_slot": NO_SLOT,
            "stop": True,
            "model": text.name,
            "tokens_predicted": num_predicted,
            "tokens_evaluated": len(prompt),
            "generation_settings": settings(generation.add.sampling) | {"stop": list(self.ask.stop)},
            "prompt": text.detokenize(prompt) if self._wants("prompt") else "",
            "has_new_line": has_new_line,
            "truncated": self.is_truncated,
            "stop_type": kind,
            "stopping_word": stopped_by or "",
            "tokens_cached": len(prompt) + num_predicted,
            "timings": timings(generation),
        }

    def _wants(self, name: str) -> bool:
        return not self.fields or name in self.fields

    def _selected(self, answer: Value) -> Value:
        return selected(answer, self.fields) if self.fields else answer

    def _probabilities(self, tokens: Sequence[SampledToken]) -> Value:
        if self.ask.sampling.logprobs is None:
            return {}
        return {"completion_probabilities": [self._probability(token) for token in tokens]}

    def _probability(self, token: SampledToken) -> Value:
        tops = [self._entry(top.token_id, top.logprob) for top in token.top_logprobs]
        return self._entry(token.token_id, token.logprob) | {"top_logprobs": tops}

    def _entry(self, token_id: int, logprob: float | None) -> Value:
        text = self.reply.text
        return {
            "id": token_id,
            "token": text.token_text(token_id),
            "bytes": list(text.piece(token_id)),
            "logprob": logprob,
        }
