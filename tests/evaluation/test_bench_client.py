"""The load client: open loop, every call ends in one of four ways, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from homeai.evaluation.bench import client
from homeai.evaluation.bench.client import Manners
from homeai.evaluation.bench.dialects import DIALECTS, Ollama, Wording, message_of
from homeai.evaluation.bench.records import CallRecord, Ending
from homeai.evaluation.bench.trace import Call, Part, Trace
from tests.evaluation.bench_factories import create_call

WORDING = Wording("m", "salt", forces_length=True)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"

Answer = Callable[[int, bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[httpx.AsyncClient]:
    """A server that answers the n-th request as it is told."""
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        number, count = count, count + 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        try:
            await answer(number, head + await reader.readexactly(length), reader, writer)
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        yield http


async def play(answer: Answer, *calls: Call, manners: Manners | None = None) -> list[CallRecord]:
    async with serving(answer) as http:
        trace = Trace.of("t", calls or [create_call()])
        records, _ = await client.play(http, DIALECTS["chat"], WORDING, trace, manners or Manners())
        return records


async def test_answer_is_read_to_its_end() -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + TOKEN + TOKEN + USAGE + DONE)

    (record,) = await play(answer)
    assert record.ending is Ending.COMPLETED
    assert (record.num_prompt_tokens, record.num_cached_tokens, record.num_output_tokens) == (12, 4, 2)
    assert len(record.token_times) == 2
    assert record.reason is None


async def test_events_cut_anywhere_are_read_whole() -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in HEAD + TOKEN + USAGE + DONE:
            writer.write(bytes([byte]))
            await writer.drain()

    (record,) = await play(answer)
    assert record.ending is Ending.COMPLETED
    assert len(record.token_times) == 1


async def test_source_goes_with_every_request_and_the_body_says_what_the_trace_says() -> None:
    seen: list[bytes] = []

    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(HEAD + DONE)

    await play(answer, create_call(source="kitchen", system=[Part("house", 3)], max_tokens=9))
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert b"x-homeai-source: kitchen" in head.lower()
    fields = msgspec.json.decode(body)
    assert fields["max_tokens"] == 9
    assert fields["ignore_eos"] is True
    assert [message["role"] for message in fields["messages"]] == ["system", "user"]
    assert len(fields["messages"][1]["content"].split()) == 10


@pytest.mark.parametrize(
    ("status", "ending"), [(429, Ending.REJECTED), (503, Ending.REJECTED), (400, Ending.REJECTED), (500, Ending.FAILED)]
)
async def test_rejections_and_failures_are_told_apart(status: int, ending: Ending) -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"too busy"}}'
        writer.write(f"HTTP/1.1 {status} No\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    (record,) = await play(answer)
    assert (record.ending, record.status, record.reason) == (ending, status, "too busy")


async def test_error_in_the_stream_is_a_rejection_before_the_first_token_and_a_failure_after_it() -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + TOKEN * number + b'data: {"error":{"message":"waited too long"}}\n\n')

    records = await play(answer, create_call(0.0), create_call(0.3))
    assert [record.ending for record in records] == [Ending.REJECTED, Ending.FAILED]
    assert records[0].reason == "waited too long"


async def test_stream_that_stops_is_a_failure() -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + TOKEN)

    (record,) = await play(answer)
    assert record.ending is Ending.FAILED
    assert record.reason == "the stream ended before its end"


async def test_nobody_there_is_a_failure() -> None:
    async with httpx.AsyncClient(base_url="http://127.0.0.1:9") as http:
        trace = Trace.of("t", [create_call()])
        (record,), _ = await client.play(http, DIALECTS["chat"], WORDING, trace, Manners())
    assert record.ending is Ending.FAILED
    assert record.reason is not None
    assert record.reason.startswith("ConnectError")


async def test_client_leaves_when_the_trace_says_and_the_server_notices() -> None:
    left = asyncio.Event()

    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + TOKEN)
        await writer.drain()
        await reader.read()
        left.set()

    (record,) = await play(answer, create_call(cancel_after_s=0.2))
    assert record.ending is Ending.CANCELLED
    assert record.num_output_tokens == 1
    await asyncio.wait_for(left.wait(), 10)


async def test_a_server_that_hangs_ends_the_bench_all_the_same() -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + TOKEN)
        await reader.read()

    (record,) = await play(answer, manners=Manners(drain_s=0.3))
    assert record.ending is Ending.FAILED
    assert record.reason == "no end within 0.3 s after the trace"


async def test_calls_are_sent_at_their_time_whether_or_not_others_are_answered() -> None:
    """Open loop: the first answer comes only when the last question has."""
    all_there = asyncio.Event()

    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if number == 4:
            all_there.set()
        await all_there.wait()
        writer.write(HEAD + TOKEN + DONE)

    records = await play(answer, *(create_call(0.05 * number) for number in range(5)))
    assert all(record.ending is Ending.COMPLETED for record in records)
    assert all(record.sent_at >= record.due_at for record in records)


async def test_rejected_call_comes_back_when_it_is_told_to_and_counts_its_attempts() -> None:
    async def answer(number: int, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if number == 0:
            writer.write(b"HTTP/1.1 429 No\r\nretry-after: 0.1\r\ncontent-length: 2\r\n\r\n{}")
        else:
            writer.write(HEAD + TOKEN + DONE)

    (record,) = await play(answer, manners=Manners(max_retries=2))
    assert record.ending is Ending.COMPLETED
    assert record.num_attempts == 2
    (record,) = await play(answer)
    assert record.ending is Ending.REJECTED


def test_ollama_lines() -> None:
    dialect = Ollama()
    first = dialect.read(b'{"message":{"role":"assistant","content":"a"},"done":false}')
    last = dialect.read(b'{"message":{"content":""},"done":true,"prompt_eval_count":7,"eval_count":3}')
    assert first is not None
    assert first.has_text
    assert last is not None
    assert last.is_end
    assert (last.num_prompt_tokens, last.num_output_tokens) == (7, 3)
    assert dialect.read(b"") is None


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"no"}}', b'{"error":"no"}', b'{"detail":"no"}', b'{"message":"no"}', b"no"]
)
def test_any_familys_error_is_understood(body: bytes) -> None:
    assert message_of(body) == "no"
