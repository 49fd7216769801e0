"""Errors as clients parse them, and answers that end when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

import homeai.errors
from homeai.errors import HomeAIError, InvalidRequest, NotReady, PromptTooLong, RequestError, TooManyRequests
from homeai.server.answers import JSON, ClientGone, EventStream, error_headers, error_response, unless_gone
from homeai.server.shapes import openai_error
from tests.server.fakes import until


class FakeConnection:
    """A client that listens until `leave`; records what it got."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()
        self.sent: list[Message] = []
        self.send_blocks = False

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.send_blocks:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


# ---- errors --------------------------------------------------------------------------------------------


def test_tree_of_errors_is_as_drawn() -> None:
    """Names, nesting and statuses of the drawing in errors.py are those of the classes."""
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for line in (homeai.errors.__doc__ or "").splitlines():
        words = line.lstrip("│├└─ ").split()
        if words and hasattr(homeai.errors, words[0]):
            depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
            path[depth:] = [words[0]]
            drawn[words[0]] = path[-2] if depth else None
            if len(words) > 1 and words[1].isdigit():
                assert getattr(homeai.errors, words[0]).status == int(words[1]), line
    classes = {name: value for name, value in vars(homeai.errors).items() if isinstance(value, type)}
    assert drawn == {name: None if cls is HomeAIError else cls.__base__.__name__ for name, cls in classes.items()}


def test_error_is_openai_s_shape() -> None:
    assert openai_error(InvalidRequest("bad", param="n")) == {
        "error": {"message": "bad", "type": "invalid_request_error", "param": "n", "code": None}
    }


def test_prompt_too_long_says_both_numbers_to_programs_too() -> None:
    error = openai_error(PromptTooLong(9000, 8191))["error"]
    assert error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (9000, 8191)


def test_retry_is_asked_for_where_it_helps_and_only_there() -> None:
    assert error_headers(TooManyRequests("later", retry_after_s=1.2)) == {
        "retry-after": "2",
        "retry-after-ms": "1200",
    }
    assert error_headers(NotReady("later")) == {}
    assert error_headers(InvalidRequest("never")) == {"x-should-retry": "false"}
    assert error_headers(RequestError("a bug")) == {"x-should-retry": "false"}


def test_error_response_serialises_whatever_the_message_quotes() -> None:
    response = error_response(InvalidRequest('a "quoted"\nline \x00'), {"path": "/v1/models"})
    assert response.status_code == 400
    assert json.loads(response.body)["error"]["message"] == 'a "quoted"\nline \x00'


def test_json_is_utf8() -> None:
    assert JSON({"text": "щ"}).body == '{"text":"щ"}'.encode()


# ---- unless gone ---------------------------------------------------------------------------------------


async def test_result_comes_back_while_the_client_waits(connection: FakeConnection) -> None:
    async def work() -> int:
        return 42

    assert await unless_gone(connection.receive, work()) == 42


async def test_error_of_the_work_comes_back(connection: FakeConnection) -> None:
    async def work() -> None:
        raise NotReady("no")

    with pytest.raises(NotReady):
        await unless_gone(connection.receive, work())


async def test_work_is_cancelled_and_cleaned_up_when_the_client_leaves(connection: FakeConnection) -> None:
    cleaned_up = False

    async def work() -> None:
        nonlocal cleaned_up
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up = True

    connection.leave()
    with pytest.raises(ClientGone):
        await unless_gone(connection.receive, work())
    assert cleaned_up


async def test_result_that_is_there_counts_more_than_a_client_that_leaves(connection: FakeConnection) -> None:
    async def work() -> int:
        return 42

    connection.leave()
    assert await unless_gone(connection.receive, work()) == 42


# ---- event streams -------------------------------------------------------------------------------------


class Chunks:
    """Three chunks, or one and then silence; records that it was closed."""

    def __init__(self, *, endless: bool = False) -> None:
        self.is_closed = False
        self._endless = endless

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"one "
            if self._endless:
                await asyncio.Event().wait()
            yield b"two "
            yield b"three"
        finally:
            self.is_closed = True


async def test_chunks_go_out_each_at_once(connection: FakeConnection) -> None:
    chunks = Chunks()
    await EventStream(chunks())({}, connection.receive, connection.send)
    assert connection.body == b"one two three"
    assert [message.get("more_body") for message in connection.sent] == [None, True, True, True, False]
    headers = dict(connection.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    assert chunks.is_closed


async def test_chunks_are_closed_when_the_client_leaves(connection: FakeConnection) -> None:
    chunks = Chunks(endless=True)
    answering = asyncio.create_task(EventStream(chunks())({}, connection.receive, connection.send))
    await until(lambda: connection.body == b"one ")
    connection.leave()
    await answering
    assert chunks.is_closed


async def test_chunks_are_closed_when_the_client_left_before_the_first(connection: FakeConnection) -> None:
    """A generator that was never entered would not run its `finally`: the request would go on for nobody."""
    chunks = Chunks()
    connection.send_blocks = True
    connection.leave()
    await EventStream(chunks())({}, connection.receive, connection.send)
    assert chunks.is_closed


async def test_no_chunk_is_an_empty_body(connection: FakeConnection) -> None:
    async def nothing() -> AsyncGenerator[bytes, None]:
        return
        yield b""

    await EventStream(nothing())({}, connection.receive, connection.send)
    assert connection.body == b""
