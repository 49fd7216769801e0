"""Home Assistant's integrations over /v1, request by request: `llama_cpp`, and the two that come from HACS.

The readers here read what those integrations read, and no more.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.blackbox.asking import BOTH_WAYS, post
from tests.daemon import Daemon, eventually

both_ways = pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])

SYSTEM = {"role": "system", "content": "You control a home. Answer in one sentence."}
PROBE = {
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "test_function",
                "description": "Test function.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ],
    "max_tokens": 3,
}
TURN_ON = {
    "type": "function",
    "function": {
        "name": "HassTurnOn",
        "description": "Turns on a device or entity.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "area": {"enum": ["kitchen", "hall"]},
                "domain": {"type": "array", "items": {"enum": ["light", "switch"]}, "maxItems": 2},
            },
            "required": ["area"],
        },
    },
}
GET_STATE = {
    "type": "function",
    "function": {"name": "GetLiveContext", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def home(daemon: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="sk-0000000000000000000") as client:
        yield client


@dataclass
class Heard:
    """What the stream reader takes in: the role, text before the first call, calls one by one, up to the end."""

    role: str | None = None
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, chunk: ChatCompletionChunk) -> bool:
        """True when nothing that follows is read."""
        if not chunk.choices:
            return False
        (choice,) = chunk.choices
        delta = choice.delta
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
            return True
        if delta.tool_calls:
            call = delta.tool_calls[0]
            assert call.function is not None
            if self.calls and self.calls[-1]["index"] == call.index:
                self.calls[-1]["arguments"] += call.function.arguments or ""
                return False
            if self.calls:  # the one before must be whole by now
                json.loads(self.calls[-1]["arguments"])
            arguments = call.function.arguments or ""
            self.calls.append({"index": call.index, "id": call.id, "name": call.function.name, "arguments": arguments})
        elif not self.calls:
            self.role = self.role or delta.role
            self.content += delta.content or ""
        return False


async def hear(home: openai.AsyncOpenAI, **fields: Any) -> Heard:
    """Reads to the end of the answer and, as the integration does, no further."""
    heard = Heard()
    stream = await home.chat.completions.create(model="default", stream=True, **fields)
    async for chunk in stream:
        if heard.take(chunk):
            break
    await stream.close()
    return heard


# ---- llama_cpp: set-up ---------------------------------------------------------------------------------------


async def test_models_are_found_at_set_up(home: openai.AsyncOpenAI, daemon: Daemon) -> None:
    page = await home.with_options(timeout=10.0).models.list()
    assert [model.id async for model in page] == [daemon.status()["model"]["name"]]


async def test_probe_with_a_tool_and_three_tokens_is_answered_g2(home: openai.AsyncOpenAI) -> None:
    answer = await home.chat.completions.create(model="default", **PROBE)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


async def test_streamed_probe_is_well_formed_to_its_end_g2(home: openai.AsyncOpenAI) -> None:
    """Else streaming is taken for unsupported, for good."""
    stream = await home.chat.completions.create(model="default", stream=True, **PROBE)
    chunks = [chunk async for chunk in stream]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert [reason for reason in reasons if reason] == reasons[-1:]


@both_ways
def test_probe_whose_call_is_cut_after_three_tokens_is_no_error(daemon: Daemon, stream: bool) -> None:
    response = post(daemon, PROBE | {"stream": stream, "tool_choice": "required"})
    assert response.status_code == 200, response.text
    assert '"finish_reason":"length"' in response.text


# ---- llama_cpp: conversations ----------------------------------------------------------------------------------


async def test_role_comes_before_the_calls_and_text_not_at_the_end(home: openai.AsyncOpenAI) -> None:
    messages = [SYSTEM, {"role": "user", "content": "Light in the kitchen"}]
    fields = {"messages": messages, "max_tokens": 200, "temperature": 0.0, "top_p": 0.95, "user": "01JCONVERSATION"}
    heard = await hear(home, **fields, tools=[TURN_ON, GET_STATE], tool_choice="required", parallel_tool_calls=False)
    assert (heard.role, heard.content, heard.finish_reason) == ("assistant", "", "tool_calls")
    (call,) = heard.calls
    assert call["id"]
    assert call["name"] in ("HassTurnOn", "GetLiveContext")
    assert isinstance(json.loads(call["arguments"]), dict)


async def test_text_that_is_heard_is_the_whole_answer(home: openai.AsyncOpenAI) -> None:
    """Nothing is lost by not reading what comes with the end, or after it."""
    fields = {"messages": [SYSTEM, {"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0.0}
    heard = await hear(home, **fields)
    whole = await home.chat.completions.create(model="default", **fields)
    assert heard.role == "assistant"
    assert heard.content == whole.choices[0].message.content
    assert heard.finish_reason == whole.choices[0].finish_reason


async def test_leaving_at_the_end_of_the_answer_is_no_cancel(daemon: Daemon) -> None:
    headers = {"X-HomeAI-Source": "home-leaves-early"}
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x", default_headers=headers) as home:
        await hear(home, messages=[{"role": "user", "content": "Hello"}], max_tokens=3)
    (row,) = eventually(lambda: daemon.ledger_rows("home-leaves-early"))
    assert row["status"] == 200
    assert row["finish_reason"] in ("length", "stop")


@both_ways
async def test_result_of_a_call_is_told_and_the_conversation_goes_on_f5(home: openai.AsyncOpenAI, stream: bool) -> None:
    call = {"type": "function", "id": "call_1", "function": {"name": "HassTurnOn", "arguments": '{"area":"kitchen"}'}}
    messages: list[Any] = [
        SYSTEM,
        {"role": "user", "content": "Light in the kitchen"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"data":{"success":[]},"error":null}'},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Thanks"},
    ]
    fields = {"messages": messages, "tools": [TURN_ON, GET_STATE], "max_tokens": 4, "user": "01JCONVERSATION"}
    if stream:
        assert (await hear(home, **fields)).finish_reason
    else:
        answer = await home.chat.completions.create(model="default", **fields)
        assert answer.choices[0].finish_reason


async def test_task_gets_the_structure_it_asks_for(home: openai.AsyncOpenAI) -> None:
    """An AI task: `strict`, and a schema as the converter of OpenAPI 3.1 writes it."""
    schema = {
        "type": "object",
        "properties": {
            "room": {"type": "string", "enum": ["kitchen", "hall"], "description": "Where"},
            "lit": {"type": "boolean"},
        },
        "required": ["room", "lit"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "light_state", "strict": True, "schema": schema}}
    heard = await hear(
        home, messages=[SYSTEM, {"role": "user", "content": "Which?"}], response_format=form, max_tokens=64
    )
    assert json.loads(heard.content).keys() == {"room", "lit"}


async def test_refusal_is_read_from_an_object(home: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await home.chat.completions.create(model="default", messages=[])
    assert "messages" in raised.value.response.json()["error"]["message"]


async def test_wrong_key_is_an_error_of_authentication(start_daemon: Callable[..., Daemon]) -> None:
    closed = start_daemon("server.auth=keys")
    async with openai.AsyncOpenAI(base_url=f"{closed.url}/v1", api_key="sk-wrong") as home:
        with pytest.raises(openai.AuthenticationError) as raised:
            await home.models.list()
    assert raised.value.response.json()["error"]["message"]


# ---- local_openai_llm, extended_openai_conversation ------------------------------------------------------------


def test_local_openai_llm_is_served(daemon: Daemon) -> None:
    """Content in parts, a call nobody declared, neighbours of one role, llama-server's own fields."""
    body = {
        "model": "default",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "You control a home."}]},
            {"role": "user", "content": [{"type": "text", "text": "Light in the kitchen"}]},
            {"role": "assistant", "content": "One moment."},
            {"role": "assistant", "content": "Still at it."},
            {"role": "tool", "tool_call_id": "injected_content", "content": "The kitchen has one light."},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.6,
        "parallel_tool_calls": False,
        "tools": [TURN_ON],
        "tool_choice": "none",
        "max_tokens": 4,
        "id_slot": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.5,
        "metadata": {"session_id": "01J"},
    }
    headers = {"HTTP-Referer": "https://home-assistant.io", "X-Title": "Home Assistant"}
    with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=body, headers=headers, timeout=120) as response:
        assert response.status_code == 200, response.read()
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    (end,) = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    assert end["timings"]["predicted_n"] > 0


def test_extended_openai_conversation_is_served(daemon: Daemon) -> None:
    """Functions as they were before tools, their results by name, usage in whole answers."""
    function = {"name": "execute_services", "parameters": TURN_ON["function"]["parameters"]}  # type: ignore[index]
    messages = [SYSTEM, {"role": "user", "content": "Light in the kitchen"}]
    body = {
        "messages": messages,
        "functions": [function],
        "user": "01J",
        "max_tokens": 96,
        "top_p": 1,
        "temperature": 0.5,
    }
    asked = post(daemon, body | {"function_call": {"name": "execute_services"}}).json()
    assert asked["usage"]["total_tokens"] > 0
    (choice,) = asked["choices"]
    assert choice["finish_reason"] == "function_call"
    messages += [
        choice["message"],
        {"role": "function", "name": "execute_services", "content": '[{"success": true}]'},
    ]
    told = post(daemon, body | {"messages": messages, "function_call": "auto", "max_tokens": 4})
    assert told.status_code == 200, told.text
