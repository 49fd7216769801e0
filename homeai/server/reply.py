"""A client's answer as it grows: the tokens of its generations, turned into parts and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from homeai.request import FinishReason, SampledToken
from homeai.server.client import EngineClient
from homeai.server.generation import Generation
from homeai.server.outputs import Delta, OutputText
from homeai.server.parts import Content, Part
from homeai.server.stream import Stream, TokenEvent
from homeai.server.text import Text

MAX_SHOWN_CHARS = 2000


class Piece(NamedTuple):
    """What one choice gains. `tokens` are those whose text is out with it; the last piece has `finish_reason`."""

    choice: int
    parts: list[Part]
    tokens: list[SampledToken]
    finish_reason: FinishReason | None

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, Content)])


class Parser(Protocol):
    """Splits an answer's text into reasoning, text and calls; one for each choice."""

    def push(self, text: str) -> list[Part]: ...

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """`is_cut`: the token limit ended it."""
        ...


class PlainText:
    """The parser of a text that is nothing but text."""

    def push(self, text: str) -> list[Part]:
        return [Content(text)]

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        return []


class _Choice:
    """Tokens are kept until their text is out: log-probabilities travel with the text they belong to."""

    def __init__(self, output: OutputText, parser: Parser) -> None:
        self.output = output
        self.parser = parser
        self.is_stopped = False
        self._held: list[SampledToken] = []
        self._num_out = 0

    def hold(self, token: SampledToken) -> None:
        self._held.append(token)

    def release(self, delta: Delta) -> list[SampledToken]:
        count = delta.num_tokens - self._num_out
        tokens, self._held = self._held[:count], self._held[count:]
        self._num_out = delta.num_tokens
        return tokens

    def parts(self, delta: Delta) -> list[Part]:
        return self.parser.push(delta.text) if delta.text else []

    def last_parts(self, delta: Delta, reason: FinishReason) -> list[Part]:
        return self.parts(delta) + self.parser.finish(is_cut=reason is FinishReason.LENGTH)


class Reply:
    """Reads a stream; ends generations whose stop string came. `close` when the client is done or gone."""

    def __init__(
        self,
        client: EngineClient,
        stream: Stream,
        text: Text,
        output: Callable[[], OutputText],
        parser: Callable[[], Parser] = PlainText,
        *,
        max_predict_s: float | None = None,
    ) -> None:
        """`output` makes the empty text of one choice, `parser` what splits it.

        `max_predict_s` after its first token an answer ends with the line it is in, if it has several.
        """
        self._client = client
        self._stream = stream
        self._max_predict_s = max_predict_s
        self.become(text, output, parser)

    def become(self, text: Text, output: Callable[[], OutputText], parser: Callable[[], Parser]) -> None:
        """Another model will write it, of which nothing has come yet."""
        self.text = text
        self._choices = [_Choice(output(), parser()) for _ in self._stream.generations]

    @property
    def generations(self) -> list[Generation]:
        return self._stream.generations

    @property
    def is_over(self) -> bool:
        return self._stream.is_over

    def stopped_by(self, choice: int) -> str | None:
        """The stop string that ended a choice."""
        return self._choices[choice].output.stopped

    def is_cut(self, choice: int) -> bool:
        """Ended at the end of a line: its time was up, or the next line is indented less than asked."""
        return self._choices[choice].is_stopped and not self._choices[choice].output.stopped

    async def wait(self, timeout_s: float | None = None) -> bool:
        """True when `read` has something or all is over. Raises the error that ended a generation."""
        return await self._stream.wait(timeout_s)

    def read(self) -> Iterator[Piece]:
        """What has come so far, empty pieces left out."""
        for event in self._stream.read():
            yield from self._piece(event)

    def close(self) -> None:
        self._client.abort(self._stream)

    def _piece(self, event: TokenEvent) -> Iterator[Piece]:
        choice = self._choices[event.choice]
        output = choice.output
        if event.token is not None and not choice.is_stopped:
            choice.hold(event.token)
            delta = output.push(event.token.token_id, self.text.is_end(event.token.token_id))
            if output.stopped is not None or self._is_late(event.choice, delta):
                choice.is_stopped = True
                self._client.stop(self._stream, event.choice, output.num_tokens)
            self._show(event.choice, delta)
            if delta.text and (parts := choice.parts(delta)):
                yield Piece(event.choice, parts, choice.release(delta), None)
        if event.finish_reason is not None:
            delta = output.finish()
            reason = FinishReason.STOP if choice.is_stopped else event.finish_reason
            yield Piece(event.choice, choice.last_parts(delta, reason), choice.release(delta), reason)

    def _show(self, choice: int, delta: Delta) -> None:
        generation = self.generations[choice]
        if generation.shown_text is not None and delta.text:
            generation.shown_text = (generation.shown_text + delta.text)[-MAX_SHOWN_CHARS:]

    def _is_late(self, choice: int, delta: Delta) -> bool:
        first_token_at = self.generations[choice].first_token_at
        if self._max_predict_s is None or first_token_at is None or "\n" not in delta.text:
            return False
        return time.monotonic() - first_token_at > self._max_predict_s
