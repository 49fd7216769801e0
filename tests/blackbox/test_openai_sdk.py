"""The `openai` package works against the daemon as it is: answers, streams, errors, its own retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.daemon import Daemon, eventually

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
EXACT = {"ignore_eos": True}
SIX = "1 2 3 4 5 6 7 8 9 10 11 12"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client:
        yield client


@pytest.fixture
async def async_client(daemon: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client:
        yield client


# ---- answers -------------------------------------------------------------------------------------------


def test_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="default", messages=HELLO, max_tokens=8, temperature=0)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("length", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def test_streamed_chat_is_the_same_as_the_whole_one(client: openai.OpenAI) -> None:
    request = {"model": "default", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**request)
    with client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}) as stream:
        *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in chunks)


def test_the_streaming_helper_gathers_the_final_answer(client: openai.OpenAI) -> None:
    request = {"model": "default", "messages": HELLO, "max_tokens": 200, "temperature": 0, "stop": ["a", "e", "o"]}
    with client.chat.completions.stream(**request) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text


def test_several_choices_come_in_order(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="default", messages=HELLO, n=3, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    with client.chat.completions.create(model="default", messages=HELLO, n=3, max_tokens=4, stream=True) as stream:
        ends = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1, 2]


def test_answer_ends_before_a_stop_string(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="default", prompt=SIX, stop=["17 18"], max_tokens=40, temperature=0)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.text.rstrip().endswith("16")
    with client.completions.create(
        model="default", prompt=SIX, stop="17 18", max_tokens=40, temperature=0, stream=True
    ) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == choice.text


def test_chat_reports_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default", messages=HELLO, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    for token in logprobs.content:
        assert token.logprob <= 0
        assert [token.top_logprobs[0].token, len(token.top_logprobs)] == [token.token, 3]


def test_completion_reports_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="default", prompt="One two", max_tokens=5, logprobs=2, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.token_logprobs is not None
    assert all(logprob <= 0 for logprob in logprobs.token_logprobs)


def test_usage_is_counted_exactly(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="default", prompt=[2, 10, 20], max_tokens=7, extra_body=EXACT)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 7)


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).id == model.id
    answer = client.completions.create(model=model.id, prompt="Hi", max_tokens=1)
    assert answer.model == model.id


async def test_eight_asynchronous_streams_at_once_are_whole(async_client: openai.AsyncOpenAI) -> None:
    async def tokens(count: int) -> int:
        stream = await async_client.completions.create(
            model="default",
            prompt="Once upon a time",
            max_tokens=count,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=EXACT,
        )
        async with stream:
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-2].choices[0].finish_reason == "length"
        return chunks[-1].usage.completion_tokens

    counts = range(10, 18)
    assert await asyncio.gather(*map(tokens, counts)) == [*counts]


async def test_asynchronous_chats_and_streams_mix(async_client: openai.AsyncOpenAI) -> None:
    create = async_client.chat.completions.create
    wholes = [create(model="default", messages=HELLO, max_tokens=6) for _ in range(4)]
    streams = [create(model="default", messages=HELLO, max_tokens=6, stream=True) for _ in range(4)]
    for whole in await asyncio.gather(*wholes):
        assert whole.choices[0].finish_reason in ("stop", "length")
    for stream in await asyncio.gather(*streams):
        async with stream:
            assert [chunk async for chunk in stream][-1].choices[0].finish_reason in ("stop", "length")


async def test_closing_an_asynchronous_stream_frees_its_place(async_client: openai.AsyncOpenAI, daemon: Daemon) -> None:
    stream = await async_client.completions.create(
        model="default", prompt="On", max_tokens=3000, stream=True, user="leaver", extra_body=EXACT
    )
    await anext(aiter(stream))
    await stream.close()
    answer = await async_client.completions.create(model="default", prompt="On", max_tokens=2, extra_body=EXACT)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


# ---- tools and forms -----------------------------------------------------------------------------------


class Light(BaseModel):
    """Switch a light."""

    room: Literal["kitchen", "hall"]
    on: bool


LIGHT = openai.pydantic_function_tool(Light)
ONLY_LIGHT: Any = {"type": "function", "function": {"name": "Light"}}
ASKED: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Light in the kitchen, please."}],
    "max_tokens": 96,
    "temperature": 0,
}


def test_call_is_parsed_into_what_was_declared(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**ASKED, tools=[LIGHT], tool_choice=ONLY_LIGHT, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Light)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


def test_streamed_call_is_gathered_by_the_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        **ASKED, tools=[LIGHT], tool_choice=ONLY_LIGHT, parallel_tool_calls=False
    ) as stream:
        events = list(stream)
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Light)
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done.arguments == call.function.arguments
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == done.arguments


def test_result_of_a_call_is_sent_back_as_it_came(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(**ASKED, tools=[LIGHT], tool_choice=ONLY_LIGHT, parallel_tool_calls=False)
    message = asked.choices[0].message
    (call,) = message.tool_calls or ()
    told: Any = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    messages = [*ASKED["messages"], message, told]
    answer = client.chat.completions.create(**ASKED | {"messages": messages, "max_tokens": 4}, tools=[LIGHT])
    assert answer.choices[0].finish_reason


def test_answer_is_parsed_into_what_was_declared(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**ASKED, response_format=Light)
    assert isinstance(answer.choices[0].message.parsed, Light)
    with client.chat.completions.stream(**ASKED, response_format=Light) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


@pytest.mark.parametrize("form", [{"response_format": Light}, {"tools": [LIGHT], "tool_choice": ONLY_LIGHT}], ids=str)
def test_answer_that_is_cut_is_no_parsed_one(client: openai.OpenAI, form: dict[str, Any]) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**ASKED | {"max_tokens": 3}, **form)


def test_several_choices_each_fit_the_form(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**ASKED | {"temperature": 1.0}, n=3, response_format=Light)
    assert [type(choice.message.parsed) for choice in answer.choices] == [Light] * 3


def test_bytes_of_log_probabilities_are_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED | {"max_tokens": 8}, logprobs=True)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    told = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content or ())
    assert told.decode("utf-8", "replace").strip() == (choice.message.content or "").strip()


# ---- errors --------------------------------------------------------------------------------------------


class Counting(httpx.HTTPTransport):
    """Counts the requests that the SDK makes, its retries too."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []
        self.on_response: Callable[[int], None] = lambda status: None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        self.statuses.append(response.status_code)
        self.on_response(response.status_code)
        return response


@pytest.fixture
def transport() -> Counting:
    return Counting()


@pytest.fixture
def counted(daemon: Daemon, transport: Counting) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{daemon.url}/v1", api_key="unused", http_client=httpx.Client(transport=transport)
    ) as client:
        yield client


def too_hot(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="default", messages=HELLO, temperature=5)


def too_long(client: openai.OpenAI) -> object:
    return client.completions.create(model="default", prompt="word " * 40_000)


def no_messages(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="default", messages=[], stream=True)


def unknown_model(client: openai.OpenAI) -> object:
    return client.chat.completions.create(model="gpt-17", messages=HELLO)


def unknown_model_asked_for(client: openai.OpenAI) -> object:
    return client.models.retrieve("gpt-17")


@pytest.mark.parametrize(
    ("ask", "kind", "code"),
    [
        (too_hot, openai.BadRequestError, None),
        (no_messages, openai.BadRequestError, None),
        (too_long, openai.BadRequestError, "context_length_exceeded"),
        (unknown_model, openai.NotFoundError, "model_not_found"),
        (unknown_model_asked_for, openai.NotFoundError, "model_not_found"),
    ],
)
def test_a_mistake_is_raised_as_what_it_is_and_not_retried(
    counted: openai.OpenAI,
    transport: Counting,
    ask: Callable[[openai.OpenAI], object],
    kind: type[openai.APIStatusError],
    code: str | None,
) -> None:
    with pytest.raises(kind) as raised:
        ask(counted)
    assert raised.value.code == code
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert raised.value.request_id
    assert transport.statuses == [raised.value.status_code]


def test_error_body_names_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        too_hot(client)
    assert (raised.value.param, raised.value.type) == ("temperature", "invalid_request_error")
    assert "temperature" in raised.value.message
    json.dumps(raised.value.body)


@pytest.fixture(scope="module")
def full_house(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("scheduler.max_num_seqs=1", "classes.interactive.max_waiting=0")


@pytest.fixture
def visitor(full_house: Daemon, transport: Counting) -> Iterator[openai.OpenAI]:
    http = httpx.Client(transport=transport)
    with openai.OpenAI(base_url=f"{full_house.url}/v1", api_key="unused", http_client=http) as client:
        yield client


@pytest.fixture
def talker(full_house: Daemon) -> Iterator[httpx.Response]:
    """Has the only seat, once whoever had it in an earlier test has left."""
    eventually(lambda: not full_house.status()["requests"])
    talk = {"prompt": "On", "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with full_house.client() as http, http.stream("POST", "/v1/completions", json=talk) as response:
        assert response.status_code == 200
        lines = response.iter_lines()  # to be kept: httpx closes the connection with it
        assert next(lines)
        yield response


@pytest.mark.usefixtures("talker")
def test_full_house_is_a_rate_limit_error(visitor: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        visitor.with_options(max_retries=0).completions.create(model="default", prompt="Hi")
    assert raised.value.code == "rate_limit_exceeded"
    assert float(raised.value.response.headers["retry-after-ms"]) > 0


def test_the_sdk_gets_in_by_its_own_retry_once_there_is_room(
    talker: httpx.Response, visitor: openai.OpenAI, transport: Counting
) -> None:
    transport.on_response = lambda status: talker.close()
    answer = visitor.completions.create(model="default", prompt="Hi", max_tokens=1)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert transport.statuses == [429, 200]


def test_stream_that_breaks_is_raised_as_an_error(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("residency.max_restarts=0")
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client:
        stream = client.completions.create(model="default", prompt="On", max_tokens=5000, stream=True, extra_body=EXACT)
        next(stream)
        (engine,) = daemon.engines
        engine.kill()
        with pytest.raises(openai.APIError) as raised:
            list(stream)
    assert raised.value.code == "service_unavailable"
