"""The `anthropic` package works against the daemon as it is: messages, streams, counts, errors, its own retries."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, ToolChoiceParam, ToolParam
from pydantic import BaseModel

from tests.blackbox.stories import story
from tests.daemon import Daemon, eventually

MODEL = "claude-of-the-house"
HELLO: list[MessageParam] = [{"role": "user", "content": "Say hello."}]
COUNTING: list[MessageParam] = [
    {"role": "user", "content": "1 2 3 4 5 6 7 8"},
    {"role": "assistant", "content": "9 10 11 12"},  # goes on for as long as one lets it
]
GREEDY = {"temperature": 0}


@pytest.fixture
def client(daemon: Daemon) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=daemon.url, api_key="unused") as client:
        yield client


@pytest.fixture
async def async_client(daemon: Daemon) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=daemon.url, api_key="unused") as client:
        yield client


# ---- messages ------------------------------------------------------------------------------------------


def test_message_is_answered(client: anthropic.Anthropic) -> None:
    """H12: `stop_sequence` is there, and null."""
    message = client.messages.create(model=MODEL, messages=COUNTING, max_tokens=8, extra_body=GREEDY)
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert (message.role, message.type, message.id[:4]) == ("assistant", "message", "msg_")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert "stop_sequence" in message.model_fields_set
    assert message.usage.output_tokens == 8
    assert message._request_id


def test_streamed_message_is_the_same_as_the_whole_one(client: anthropic.Anthropic) -> None:
    request = {"model": MODEL, "messages": COUNTING, "max_tokens": 12, "extra_body": GREEDY}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert _num_input(final.usage) == _num_input(whole.usage)


def test_events_come_in_the_order_that_the_sdk_insists_on(client: anthropic.Anthropic) -> None:
    with client.messages.create(model=MODEL, messages=COUNTING, max_tokens=6, stream=True, extra_body=GREEDY) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    delta = events[-2]
    assert delta.type == "message_delta"
    assert (delta.delta.stop_reason, delta.usage.output_tokens) == ("max_tokens", 6)


@pytest.mark.parametrize("model", ["claude-opus-17", "claude-haiku-latest", "default"])
def test_any_claude_means_the_resident_model(client: anthropic.Anthropic, model: str, daemon: Daemon) -> None:
    if model == "default":
        model = daemon.status()["model"]["name"]
    message = client.messages.create(model=model, messages=HELLO, max_tokens=1)
    assert message.model == daemon.status()["model"]["name"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence_ends_the_answer_and_is_reported(client: anthropic.Anthropic, stream: bool) -> None:
    """H15"""
    request = {
        "model": MODEL,
        "messages": COUNTING,
        "max_tokens": 40,
        "stop_sequences": ["never this", "17 18"],
        "extra_body": GREEDY,
    }
    if stream:
        with client.messages.stream(**request) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**request)
    (block,) = message.content
    assert block.type == "text"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "17 18")
    assert block.text.rstrip().endswith("16")


def test_repeated_beginning_is_read_from_the_cache(client: anthropic.Anthropic) -> None:
    """H16"""
    system = [{"type": "text", "text": story(300, 4711), "cache_control": {"type": "ephemeral"}}]
    first, second = (
        client.messages.create(model=MODEL, system=system, messages=HELLO, max_tokens=1)  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert second.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens > 300
    assert _num_input(first.usage) == _num_input(second.usage)


def test_system_may_be_text_or_blocks(client: anthropic.Anthropic) -> None:
    texts = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
    blocks = client.messages.count_tokens(model=MODEL, messages=HELLO, system=[{"type": "text", "text": "Be brief."}])
    assert texts.input_tokens == blocks.input_tokens


def test_prompt_is_computed_without_an_answer(client: anthropic.Anthropic) -> None:
    """What Anthropic calls pre-warming."""
    message = client.messages.create(model=MODEL, messages=HELLO, max_tokens=0)
    assert (message.usage.output_tokens, message.stop_reason) == (0, "max_tokens")


def test_tool_results_go_back_in(client: anthropic.Anthropic) -> None:
    messages: list[MessageParam] = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "They want the weather.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    message = client.messages.create(model=MODEL, messages=messages, max_tokens=4)
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 10


async def test_asynchronous_messages_and_streams_mix(async_client: anthropic.AsyncAnthropic) -> None:
    async def streamed() -> str:
        async with async_client.messages.stream(model=MODEL, messages=HELLO, max_tokens=6) as stream:
            return "".join([text async for text in stream.text_stream])

    create = async_client.messages.create
    wholes = [create(model=MODEL, messages=HELLO, max_tokens=6) for _ in range(4)]
    messages, texts = await asyncio.gather(asyncio.gather(*wholes), asyncio.gather(*(streamed() for _ in range(4))))
    assert all(message.stop_reason for message in messages)
    assert len(texts) == 4


# ---- tools and formats ---------------------------------------------------------------------------------


class Light(BaseModel):
    room: Literal["kitchen", "bath"]
    is_on: bool


LIGHT: ToolParam = {
    "name": "light_on",
    "description": "Turns a light on.",
    "input_schema": {
        "type": "object",
        "properties": {"room": {"type": "string", "enum": ["kitchen", "bath"]}},
        "required": ["room"],
        "additionalProperties": False,
    },
}
ONE_LIGHT: ToolChoiceParam = {"type": "tool", "name": "light_on", "disable_parallel_tool_use": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [ONE_LIGHT, {"type": "any", "disable_parallel_tool_use": True}])
def test_tool_is_called(client: anthropic.Anthropic, choice: ToolChoiceParam, stream: bool) -> None:
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Light!"}],
        "max_tokens": 100,
        "tools": [LIGHT],
        "tool_choice": choice,
        "extra_body": GREEDY,
    }
    if stream:
        with client.messages.stream(**request) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**request)
    (call,) = message.content
    assert call.type == "tool_use"
    assert call.name == "light_on"
    assert call.input["room"] in ("kitchen", "bath")  # type: ignore[index]
    assert message.stop_reason == "tool_use"


def test_call_begins_with_an_empty_input(client: anthropic.Anthropic) -> None:
    """H13: an object, and there."""
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 100, "tools": [LIGHT], "tool_choice": ONE_LIGHT}
    with client.messages.with_streaming_response.create(**request, stream=True, extra_body=GREEDY) as response:
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line[:5] == "data:"]
    (start,) = [event for event in events if event["type"] == "content_block_start"]
    assert (start["content_block"]["type"], start["content_block"]["input"]) == ("tool_use", {})


def test_input_of_a_tool_comes_in_parts_that_are_its_json(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model=MODEL, messages=HELLO, max_tokens=100, tools=[LIGHT], tool_choice=ONE_LIGHT, extra_body=GREEDY
    ) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (call,) = stream.get_final_message().content
    assert json.loads("".join(parts)) == call.input  # type: ignore[union-attr]


def test_format_of_the_answer_is_kept_and_parsed(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(model=MODEL, messages=HELLO, max_tokens=100, output_format=Light, extra_body=GREEDY)
    assert isinstance(message.parsed_output, Light)


def test_tools_count(client: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {"model": MODEL, "messages": HELLO, "tools": [LIGHT]}
    counted = client.messages.count_tokens(**request)
    message = client.messages.create(**request, max_tokens=1)
    assert counted.input_tokens == _num_input(message.usage)
    assert counted.input_tokens > client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens


# ---- counting ------------------------------------------------------------------------------------------


def test_count_is_what_the_message_then_has(client: anthropic.Anthropic) -> None:
    request = {"model": MODEL, "messages": HELLO, "system": "You are brief."}
    counted = client.messages.count_tokens(**request)
    message = client.messages.create(**request, max_tokens=1)
    assert counted.input_tokens == _num_input(message.usage)


# ---- errors --------------------------------------------------------------------------------------------


def too_hot(client: anthropic.Anthropic) -> object:
    return client.messages.create(model=MODEL, messages=HELLO, max_tokens=1, extra_body={"temperature": 1.5})


def too_long(client: anthropic.Anthropic) -> object:
    return client.messages.create(model=MODEL, messages=[{"role": "user", "content": "word " * 40_000}], max_tokens=1)


def no_messages(client: anthropic.Anthropic) -> object:
    return client.messages.create(model=MODEL, messages=[], max_tokens=1, stream=True)


def no_limit(client: anthropic.Anthropic) -> object:
    return client.post("/v1/messages", body={"model": MODEL, "messages": HELLO}, cast_to=object)


def image(client: anthropic.Anthropic) -> object:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    content = [{"type": "image", "source": source}]
    return client.messages.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=1)  # type: ignore[typeddict-item]


def unknown_model(client: anthropic.Anthropic) -> object:
    return client.messages.create(model="gpt-17", messages=HELLO, max_tokens=1)


@pytest.mark.parametrize(
    ("ask", "status", "kind", "words"),
    [
        (too_hot, 400, "invalid_request_error", "temperature"),
        (no_messages, 400, "invalid_request_error", "messages is empty"),
        (no_limit, 400, "invalid_request_error", "max_tokens: field required"),
        (image, 400, "invalid_request_error", "'image' is not supported"),
        (too_long, 400, "invalid_request_error", "prompt is too long: "),
        (unknown_model, 404, "not_found_error", "'gpt-17' does not exist"),
    ],
)
def test_a_mistake_is_raised_as_what_it_is(
    client: anthropic.Anthropic, ask: Callable[[anthropic.Anthropic], object], status: int, kind: str, words: str
) -> None:
    with pytest.raises(anthropic.APIStatusError) as raised:
        ask(client)
    assert raised.value.status_code == status
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["type"] == "error"
    assert raised.value.body["request_id"] == raised.value.request_id
    assert raised.value.body["error"]["type"] == kind
    assert words in raised.value.body["error"]["message"]
    assert raised.value.response.headers["x-should-retry"] == "false"


@pytest.fixture(scope="module")
def full_house(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("scheduler.max_num_seqs=1", "classes.interactive.max_waiting=0", "model.num_threads=1")


@pytest.fixture
def visitor(full_house: Daemon) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=full_house.url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def talker(full_house: Daemon) -> Iterator[httpx.Response]:
    """Has the only seat."""
    eventually(lambda: not full_house.status()["requests"])
    talk = {"prompt": "On", "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with full_house.client() as http, http.stream("POST", "/v1/completions", json=talk) as response:
        lines = response.iter_lines()  # to be kept: httpx closes the connection with it
        assert next(lines)
        yield response


@pytest.mark.usefixtures("talker")
def test_full_house_is_overloaded(visitor: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as raised:
        visitor.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert raised.value.status_code == 529
    assert raised.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
    assert float(raised.value.response.headers["retry-after-ms"]) > 0


@pytest.mark.usefixtures("talker")
def test_counting_waits_for_nobody(visitor: anthropic.Anthropic) -> None:
    assert visitor.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens > 0


def test_stream_that_breaks_is_raised_as_an_error(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("server.drain_timeout_s=0", "model.num_threads=1")
    with (
        anthropic.Anthropic(base_url=daemon.url, api_key="unused", max_retries=0) as client,
        client.messages.create(
            model=MODEL, messages=COUNTING, max_tokens=5000, stream=True, extra_body=GREEDY
        ) as stream,
    ):
        next(stream)
        daemon.process.send_signal(signal.SIGTERM)
        with pytest.raises(anthropic.APIStatusError) as raised:
            list(stream)
    assert raised.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


def _num_input(usage: anthropic.types.Usage) -> int:
    """The three kinds add up to the prompt."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
