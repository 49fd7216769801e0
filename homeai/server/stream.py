"""The tokens that one client waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from homeai.errors import RequestError
from homeai.messages import AddRequest
from homeai.request import FinishReason, SampledToken
from homeai.server.generation import Generation

if TYPE_CHECKING:
    from homeai.server.text import Text

Again = Callable[["Text"], Awaitable[list[AddRequest]]]


class TokenEvent(NamedTuple):
    """News of one generation: a token, or its end."""

    choice: int  # which generation of the stream
    token: SampledToken | None
    finish_reason: FinishReason | None


class Stream:
    """What one client waits for: the tokens of one or more generations, in the order in which they came."""

    def __init__(self, generations: list[Generation], on_read: Callable[[str], None]) -> None:
        """`on_read` is told when the end of a generation was read, and dealt with."""
        self.generations = generations
        self._on_read = on_read
        self.again: Again | None = None  # how its prompts are made for another model
        self._choice = {generation.add.request_id: i for i, generation in enumerate(generations)}
        self._events: deque[TokenEvent] = deque()
        self._error: RequestError | None = None
        self._wake: asyncio.Future[bool] | None = None
        self._num_open = len(generations)

    @property
    def request_ids(self) -> list[str]:
        return list(self._choice)

    @property
    def has_begun(self) -> bool:
        """The engine was, or is, at work for it."""
        return any(generation.started_at is not None for generation in self.generations)

    @property
    def num_buffered(self) -> int:
        return len(self._events)

    def has_unread_tokens(self, request_id: str) -> bool:
        choice = self._choice[request_id]
        return any(event.choice == choice and event.token is not None for event in self._events)

    def push(self, request_id: str, token: SampledToken) -> None:
        self._events.append(TokenEvent(self._choice[request_id], token, None))
        self._notify()

    def finish(self, request_id: str, reason: FinishReason) -> None:
        self._events.append(TokenEvent(self._choice[request_id], None, reason))
        self._num_open -= 1
        self._notify()

    def fail(self, error: RequestError) -> None:
        self._error = self._error or error
        self._num_open -= 1
        self._notify()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """True when there is something to read, or nothing more to come. Raises what ended a generation."""
        if not self._events and self._error is None and self._num_open and not await self._news(timeout_s):
            return False
        if self._error is not None and not self._events:
            raise self._error  # after what came before it
        return True

    def read(self) -> Iterator[TokenEvent]:
        """What has come so far."""
        while self._events:
            event = self._events.popleft()
            yield event
            if event.finish_reason is not None:
                self._on_read(self.generations[event.choice].add.request_id)

    @property
    def is_over(self) -> bool:
        """Complete and read. Never with an error: that is for `wait` to raise."""
        return not self._num_open and not self._events and self._error is None

    async def _news(self, timeout_s: float | None) -> bool:
        """False when the time is up first. Once per token: `asyncio.timeout` would cost as much as the rest."""
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._notify, False)
        try:
            return await self._wake
        finally:
            if timer is not None:
                timer.cancel()

    def _notify(self, is_news: bool = True) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(is_news)
