"""A client's answer as it grows: the tokens of its generations, turned into text and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from homeai.request import FinishReason, SampledToken
from homeai.server.client import EngineClient, Generation, Stream, TokenEvent
from homeai.server.outputs import Delta, OutputText
from homeai.server.text import Text


class Piece(NamedTuple):
    """What one choice gains. `tokens` are those whose text is out with it; the last piece has `finish_reason`."""

    choice: int
    text: str
    tokens: list[SampledToken]
    finish_reason: FinishReason | None


class _Choice:
    """Tokens are kept until their text is out: log-probabilities travel with the text they belong to."""

    def __init__(self, output: OutputText) -> None:
        self.output = output
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


class Reply:
    """Reads a stream; ends generations whose stop string came. `close` when the client is done or gone."""

    def __init__(self, client: EngineClient, stream: Stream, text: Text, output: Callable[[], OutputText]) -> None:
        """`output` makes the empty text of one choice."""
        self._client = client
        self._stream = stream
        self._text = text
        self._choices = [_Choice(output()) for _ in stream.generations]

    @property
    def generations(self) -> list[Generation]:
        return self._stream.generations

    @property
    def is_over(self) -> bool:
        return self._stream.is_over

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
            delta = output.push(event.token.token_id, self._text.is_end(event.token.token_id))
            if output.stopped is not None:
                choice.is_stopped = True
                self._client.stop(self._stream, event.choice, output.num_tokens)
            if delta.text:
                yield Piece(event.choice, delta.text, choice.release(delta), None)
        if event.finish_reason is not None:
            delta = output.finish()
            reason = FinishReason.STOP if choice.is_stopped else event.finish_reason
            yield Piece(event.choice, delta.text, choice.release(delta), reason)
