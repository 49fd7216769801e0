"""The Responses API through the `openai` package as it is: answers, streams, helpers, errors; Home Assistant's use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.blackbox.stories import story
from tests.daemon import Daemon

Event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

FRANCE = "What is the capital of France?"  # answered in one line
SIX = "1 2 3 4 5 6 7 8 9 10 11 12"
LONG = {"max_output_tokens": 16, "extra_body": {"ignore_eos": True}, "temperature": 0}
LIGHT = {
    "type": "function",
    "name": "light_on",
    "description": "Turns a light on.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"type": "string", "enum": ["kitchen", "bath"]}},
        "required": ["room"],
        "additionalProperties": False,
    },
    "strict": False,
}


@pytest.fixture
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client:
        yield client


@pytest.fixture
async def async_client(daemon: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client:
        yield client


# ---- answers -------------------------------------------------------------------------------------------


def test_response_is_answered(client: openai.OpenAI) -> None:
    response = client.responses.create(model="default", input="Say hello.", max_output_tokens=16, temperature=0)
    Response.model_validate(response.to_dict())
    assert response.output_text
    assert response.status in ("completed", "incomplete")
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response._request_id


def test_stream_ends_with_what_the_whole_response_says(client: openai.OpenAI) -> None:
    request = {"model": "default", "instructions": "Be brief.", "input": "Say hello.", **LONG}
    whole = client.responses.create(**request)
    with client.responses.create(**request, stream=True) as stream:
        events = list(stream)
    for number, event in enumerate(events):
        Event.validate_python(event.to_dict())
        assert event.sequence_number == number
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert (
        last.response.output_text
        == whole.output_text
        == "".join(  # type: ignore[union-attr]
            event.delta for event in events if event.type == "response.output_text.delta"
        )
    )


def test_framing_has_no_done_and_no_carriage_returns(daemon: Daemon) -> None:
    response = httpx.post(f"{daemon.url}/responses", json={"input": "Hi", "stream": True, "max_output_tokens": 2})
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert "\r" not in response.text
    assert "[DONE]" not in response.text
    assert response.text.endswith("\n\n")


def test_streaming_helper_gathers_the_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="default", input=FRANCE, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text
    assert final.status == "completed"


def test_limit_makes_it_incomplete(client: openai.OpenAI) -> None:
    """C7"""
    response = client.responses.create(model="default", input=SIX, **LONG)  # type: ignore[arg-type]
    if response.status == "incomplete":
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens == 16


def test_conversation_goes_back_in(client: openai.OpenAI) -> None:
    first = client.responses.create(model="default", input="Say hello.", max_output_tokens=8)
    items: list[Any] = [
        {"role": "user", "content": "Say hello."},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    second = client.responses.create(model="default", input=items, max_output_tokens=4)
    assert second.output


def test_repeated_beginning_is_read_from_the_cache_h16(client: openai.OpenAI) -> None:
    request = {"model": "default", "instructions": story(300, 4712), "input": "Hi", "max_output_tokens": 1}
    usages = [client.responses.create(**request).usage for _ in range(2)]
    assert usages[1] is not None
    assert usages[1].input_tokens_details.cached_tokens > 300


def test_count_is_what_the_response_then_has(client: openai.OpenAI) -> None:
    request = {"model": "default", "instructions": "Be brief.", "input": "Say hello."}
    counted = client.responses.input_tokens.count(**request)
    response = client.responses.create(**request, max_output_tokens=1)
    assert response.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", response.usage.input_tokens)


def test_log_probabilities_are_told(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="default",
        input="Say hello.",
        max_output_tokens=4,
        temperature=0,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    Response.model_validate(response.to_dict())
    (part,) = response.output[0].content  # type: ignore[union-attr]
    assert part.type == "output_text"  # type: ignore[union-attr]
    assert part.logprobs  # type: ignore[union-attr]
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)  # type: ignore[union-attr]


async def test_asynchronous_stream_is_whole(async_client: openai.AsyncOpenAI) -> None:
    stream = await async_client.responses.create(model="default", input="Hi", max_output_tokens=4, stream=True)
    async with stream:
        kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_stream_has_begun_while_its_request_still_waits(start_daemon: Callable[..., Daemon]) -> None:
    """And the SDK, which insists on `created` first, reads on behind the signs of life."""
    daemon = start_daemon("scheduler.max_num_seqs=1", "server.ping_interval_s=0.1", "model.num_threads=1")
    talk = {"prompt": "On", "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with (
        daemon.client() as http,
        http.stream("POST", "/v1/completions", json=talk) as talker,
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client,
    ):
        lines = talker.iter_lines()  # to be kept: httpx closes the connection with it
        assert next(lines)
        with client.responses.stream(model="default", input=FRANCE, temperature=0) as stream:
            kinds = [next(stream).type for _ in range(3)]
            talker.close()
            stream.until_done()
            assert stream.get_final_response().output_text
    assert kinds == ["response.created", "response.in_progress", "response.in_progress"]


# ---- tools and formats ---------------------------------------------------------------------------------


class Light(BaseModel):
    room: Literal["kitchen", "bath"]
    is_on: bool


def test_schema_is_kept_and_parsed(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model="default", input="Which light?", text_format=Light, temperature=0, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Light)


@pytest.mark.parametrize("stream", [False, True])
def test_named_tool_is_called(client: openai.OpenAI, stream: bool) -> None:
    """G10"""
    request: dict[str, Any] = {
        "model": "default",
        "input": "Light!",
        "tools": [LIGHT, LIGHT | {"name": "light_off"}],
        "tool_choice": {"type": "function", "name": "light_on"},
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_output_tokens": 100,
    }
    if stream:
        with client.responses.stream(**request) as events:
            response = events.get_final_response()
    else:
        response = client.responses.create(**request)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert call.name == "light_on"
    assert json.loads(call.arguments)["room"] in ("kitchen", "bath")


# ---- errors --------------------------------------------------------------------------------------------


def too_long(client: openai.OpenAI) -> object:
    return client.responses.create(model="default", input="word " * 40_000, stream=True)


def continued(client: openai.OpenAI) -> object:
    return client.responses.create(model="default", input="Hi", previous_response_id="resp_1")


def in_background(client: openai.OpenAI) -> object:
    return client.responses.create(model="default", input="Hi", background=True)


def unknown_model(client: openai.OpenAI) -> object:
    return client.responses.create(model="gpt-17", input="Hi")


@pytest.mark.parametrize(
    ("ask", "status", "code", "param"),
    [
        (too_long, 400, "context_length_exceeded", None),
        (continued, 400, "unsupported_value", "previous_response_id"),
        (in_background, 400, "unsupported_value", "background"),
        (unknown_model, 404, "model_not_found", "model"),
    ],
)
def test_a_mistake_is_raised_as_what_it_is(
    client: openai.OpenAI, ask: Callable[[openai.OpenAI], object], status: int, code: str, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        ask(client)
    assert (raised.value.status_code, raised.value.code) == (status, code)
    assert param in (None, raised.value.param)


# ---- Home Assistant's openai_conversation ---------------------------------------------------------------


def home_assistants(**fields: object) -> dict[str, Any]:
    """Its request; the system prompt comes as a developer's message."""
    return {
        "model": "default",
        "input": [
            {"type": "message", "role": "developer", "content": "You are a voice assistant for Home Assistant."},
            {"type": "message", "role": "user", "content": "Light on in the kitchen!"},
        ],
        "max_output_tokens": 150,
        "top_p": 1.0,
        "temperature": 1.0,
        "user": "01JWCONVERSATION",
        "store": False,
        "stream": True,
        "tools": [LIGHT, {"type": "web_search_preview", "search_context_size": "medium"}],
    } | fields


async def test_home_assistant_gets_its_call(async_client: openai.AsyncOpenAI) -> None:
    """It adds up the deltas itself, and acts upon `function_call_arguments.done`."""
    request = home_assistants(tool_choice={"type": "function", "name": "light_on"}, parallel_tool_calls=False)
    arguments, done = "", []
    async for event in await async_client.responses.create(**request):
        if event.type == "response.output_item.added" and event.item.type == "function_call":
            assert event.item.arguments == ""
        if event.type == "response.function_call_arguments.delta":
            arguments += event.delta
        if event.type == "response.function_call_arguments.done":
            done.append(json.loads(arguments))
    assert [call.keys() for call in done] == [{"room"}]


async def test_home_assistant_sends_its_calls_and_their_outputs_back(async_client: openai.AsyncOpenAI) -> None:
    """Its thoughts come after its calls, and are encrypted or empty."""
    request = home_assistants()
    request["input"] += [
        {"type": "function_call", "name": "light_on", "arguments": '{"room": "kitchen"}', "call_id": "call_1"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"success": true}'},
    ]
    kinds = [event.type async for event in await async_client.responses.create(**request)]
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def test_home_assistants_task_gets_its_structure(async_client: openai.AsyncOpenAI) -> None:
    """It writes `strict` into the schema, and makes what is optional nullable."""
    schema = {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "bath"]}, "is_on": {"type": ["boolean", "null"]}},
        "required": ["room", "is_on"],
        "strict": True,
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "task", "schema": schema}}
    request = home_assistants(text=text, tools=[], temperature=0.0)
    content = ""
    async for event in await async_client.responses.create(**request):
        content += event.delta if event.type == "response.output_text.delta" else ""
    assert json.loads(content).keys() == {"room", "is_on"}
