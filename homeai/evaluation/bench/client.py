"""Plays a trace to a server over HTTP, in the trace's own time whatever the server does (open loop)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import httpx
import msgspec

from homeai.evaluation.bench.dialects import Dialect, Event, Wording, message_of
from homeai.evaluation.bench.records import CallRecord, Ending
from homeai.evaluation.bench.trace import Call, Trace

REJECTIONS: Final = frozenset({400, 404, 408, 413, 422, 429, 503, 529})
MAX_PAUSE_S: Final = 30.0

Progress = Callable[[CallRecord], None]


@dataclass(frozen=True, slots=True)
class Manners:
    """How the clients behave. `drain_s`: after the trace's end, what has no answer by then counts as failed.

    `max_retries` after a rejection that says when to come back, as SDKs do.
    """

    drain_s: float = 60.0
    max_retries: int = 0


async def play(
    http: httpx.AsyncClient,
    dialect: Dialect,
    wording: Wording,
    trace: Trace,
    manners: Manners,
    on_end: Progress = lambda record: None,
) -> tuple[list[CallRecord], float]:
    """A record of each call, in the trace's order, and how long it took until the last one ended, in seconds."""
    clients = _Clients(http, dialect, wording, manners, on_end)
    return await clients.play(trace)


class _Clients:
    """Of one play."""

    def __init__(
        self, http: httpx.AsyncClient, dialect: Dialect, wording: Wording, manners: Manners, on_end: Progress
    ) -> None:
        self._http = http
        self._dialect = dialect
        self._wording = wording
        self._manners = manners
        self._on_end = on_end
        self._start = 0.0

    async def play(self, trace: Trace) -> tuple[list[CallRecord], float]:
        bodies = [self._dialect.body(call, index, self._wording) for index, call in enumerate(trace.calls)]
        self._start = perf_counter()
        tasks = [
            asyncio.create_task(self._ask(call, index, body))
            for index, (call, body) in enumerate(zip(trace.calls, bodies, strict=True))
        ]
        try:
            await asyncio.wait(tasks, timeout=trace.duration_s + self._manners.drain_s)
        finally:
            for task in tasks:
                task.cancel()
        records = await asyncio.gather(*tasks)
        return records, self._now()

    async def _ask(self, call: Call, index: int, body: bytes) -> CallRecord:
        record = CallRecord(
            index=index,
            group=call.group,
            source=call.source,
            fairness_class=call.fairness_class,
            due_at=call.at,
            sent_at=call.at,
            ended_at=call.at,
        )
        try:
            await asyncio.sleep(max(0.0, call.at - self._now()))
            record.sent_at = self._now()
            async with asyncio.timeout(call.cancel_after_s):
                await self._attempts(record, body)
        except TimeoutError:
            record.ending = Ending.CANCELLED
        except asyncio.CancelledError:
            record.reason = f"no end within {self._manners.drain_s:g} s after the trace"
        record.ended_at = self._now()
        record.num_output_tokens = record.num_output_tokens or len(record.token_times)
        self._on_end(record)
        return record

    async def _attempts(self, record: CallRecord, body: bytes) -> None:
        for attempt in range(self._manners.max_retries + 1):
            record.num_attempts = attempt + 1
            pause_s = await self._attempt(record, body)
            if pause_s is None or attempt == self._manners.max_retries:
                return
            await asyncio.sleep(min(pause_s, MAX_PAUSE_S))

    async def _attempt(self, record: CallRecord, body: bytes) -> float | None:
        """After how many seconds to try again, None: that was it."""
        headers = {
            "content-type": "application/json",
            "x-homeai-source": record.source,
            "x-request-id": f"bench-{self._wording.salt}-{record.index}",
        }
        try:
            async with self._http.stream("POST", self._dialect.path, content=body, headers=headers) as response:
                record.status = response.status_code
                if response.status_code == 200:
                    await self._read(record, response)
                    return None
                record.reason = message_of(await response.aread())
                is_rejected = response.status_code in REJECTIONS
                record.ending = Ending.REJECTED if is_rejected else Ending.FAILED
                return _retry_after(response.headers) if is_rejected else None
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            record.ending, record.reason = Ending.FAILED, f"{type(error).__name__}: {error}"[:200]
            return None

    async def _read(self, record: CallRecord, response: httpx.Response) -> None:
        async for line in _lines(response.aiter_bytes()):
            event = self._dialect.read(line)
            if event is None:
                continue
            self._take(record, event)
            if event.error is not None:
                record.reason = event.error
                record.ending = Ending.FAILED if record.token_times else Ending.REJECTED
                return
            if event.is_end:
                record.ending = Ending.COMPLETED
                return
        record.reason = "the stream ended before its end"

    def _take(self, record: CallRecord, event: Event) -> None:
        if event.has_text:
            record.token_times.append(self._now())
        if event.num_prompt_tokens:
            record.num_prompt_tokens = event.num_prompt_tokens
        if event.num_cached_tokens is not None:
            record.num_cached_tokens = event.num_cached_tokens
        if event.num_output_tokens:
            record.num_output_tokens = event.num_output_tokens

    def _now(self) -> float:
        return perf_counter() - self._start


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _retry_after(headers: httpx.Headers) -> float | None:
    try:
        return float(headers.get("retry-after", ""))
    except ValueError:
        return None


def failures(records: Sequence[CallRecord]) -> dict[str, int]:
    """How often each reason came, the most frequent first."""
    counts: dict[str, int] = {}
    for record in records:
        if record.reason is not None:
            counts[record.reason] = counts.get(record.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
