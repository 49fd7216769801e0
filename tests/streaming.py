"""Requests in flight, as a client sees them: streaming answers read event by event, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
END_TIMEOUT_S = 300.0


def exactly(num_tokens: int, prompt: str | list[int] = "The quick brown fox", **fields: object) -> dict[str, object]:
    """The body of a completion that ends after so many tokens, and neither earlier nor by chance."""
    return {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, **fields}


def document(num_tokens: int) -> list[int]:
    """A prompt of so many tokens."""
    return [2, *(1000 + 7 * i % 5000 for i in range(num_tokens - 1))]


class Stream:
    """A streaming answer, read in the background from the moment it is asked for."""

    def __init__(
        self, client: httpx.AsyncClient, body: dict[str, object], *, path: str = COMPLETIONS, source: str = "stream"
    ) -> None:
        self.status: int | None = None
        self.headers = httpx.Headers()
        self.events: list[Any] = []
        self.is_done = False  # [DONE] came
        self._begun = asyncio.Event()
        body = {"stream": True, "stream_options": {"include_usage": True}} | body
        self._task = asyncio.create_task(self._read(client, path, body, {"X-HomeAI-Source": source}))

    async def begun(self) -> None:
        """Until the first event, or the end if there is none."""
        async with asyncio.timeout(END_TIMEOUT_S):
            await self._begun.wait()

    async def ended(self) -> Stream:
        """However long it takes, as long as it goes on."""
        num_events = -1
        while not self._task.done() and len(self.events) > num_events:
            num_events = len(self.events)
            await asyncio.wait([self._task], timeout=END_TIMEOUT_S)
        if not self._task.done():
            self._task.cancel()
            raise TimeoutError(f"nothing came for {END_TIMEOUT_S:g} s, after {num_events} events")
        await self._task
        return self

    async def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def text(self) -> str:
        return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in self._choices)

    @property
    def finish_reason(self) -> str | None:
        return next((c["finish_reason"] for c in self._choices if c["finish_reason"]), None)

    @property
    def num_tokens(self) -> int | None:
        """By the usage event; None while it is missing."""
        return next((e["usage"]["completion_tokens"] for e in self.events if e.get("usage")), None)

    @property
    def errors(self) -> list[Any]:
        return [event["error"] for event in self.events if "error" in event]

    @property
    def _choices(self) -> list[Any]:
        return [choice for event in self.events for choice in event.get("choices", ())]

    async def _read(self, client: httpx.AsyncClient, path: str, body: object, headers: dict[str, str]) -> None:
        try:
            async with client.stream("POST", path, json=body, headers=headers) as response:
                self.status, self.headers = response.status_code, response.headers
                if response.is_error:
                    self.events.append(json.loads(await response.aread()))
                    return
                async for line in response.aiter_lines():
                    self._take(line)
        finally:
            self._begun.set()

    def _take(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        assert not self.is_done, "nothing comes after [DONE]"
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.is_done = True
        else:
            self.events.append(json.loads(data))
        self._begun.set()


class Connection:
    """A client that asks over a socket of its own and may leave at any time, answered or not."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    @classmethod
    async def ask(cls, url: str, body: dict[str, object], *, source: str, path: str = COMPLETIONS) -> Connection:
        parsed = httpx.URL(url)
        _, writer = await asyncio.open_connection(parsed.host, parsed.port)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {parsed.host}\r\nX-HomeAI-Source: {source}\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        return cls(writer)

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
