"""Home Assistant's `ollama` integration, request by request as it makes them, its reading of the answers too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import ollama
import pytest

from tests.daemon import Daemon

TIMEOUT_S = 5.0  # its own, for lists
MAX_TOOL_ROUNDS = 10  # its own
SYSTEM = "You are a voice assistant for Home Assistant. Answer in plain text. Keep it simple and to the point."
OPTIONS = {"num_ctx": 8192}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "HassTurnOn",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "area": {"type": "string"},
                    "domain": {"type": "array", "items": {"type": "string"}},
                },
                "required": [],
            },
            "description": "Turns on/opens/presses a device or entity.",
        },
    },
    {
        "type": "function",
        "function": {
            "name": "GetLiveContext",
            "parameters": {"type": "object", "properties": {}},
            "description": "Provides real-time information about the CURRENT state of devices.",
        },
    },
]


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=daemon.url) as client:
        yield client


def tool_call(tool: str, /, **arguments: object) -> ollama.Message.ToolCall:
    """As it sends earlier calls back: without an id."""
    return ollama.Message.ToolCall(function=ollama.Message.ToolCall.Function(name=tool, arguments=arguments))


async def read(stream: AsyncIterator[ollama.ChatResponse]) -> dict[str, Any]:
    """What its delta reader makes of a stream: every message has a content, text and thoughts are joined."""
    told: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    last = None
    async for response in stream:
        message = response["message"]
        assert message.get("content") is not None
        told["content"] += message["content"]
        told["thinking"] += message.get("thinking") or ""
        for call in message.get("tool_calls") or ():
            assert isinstance(call["function"]["arguments"], dict)
            told["tool_calls"].append(call)
        last = response
    assert last is not None
    assert last["done"]
    return told | {"done_reason": last["done_reason"]}


async def test_setup_and_the_half_minute_poll(client: ollama.AsyncClient) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        installed, loaded = await asyncio.gather(client.list(), client.ps())
    (model,) = installed.models
    assert sorted(model.model for model in loaded.models if model.model) == [model.model]
    assert sum(model.size or 0 for model in loaded.models) > 0
    assert sum(model.size_vram or 0 for model in loaded.models) == 0


async def test_chosen_model_is_pulled_where_it_is_thought_absent(client: ollama.AsyncClient) -> None:
    assert (await client.pull("default", stream=False)).status == "success"


@pytest.mark.parametrize("keep_alive", [-1, "-1s", "300s", "0s"])
async def test_question_of_a_person(client: ollama.AsyncClient, keep_alive: int | str) -> None:
    stream = await client.chat(
        model="default",
        messages=[
            ollama.Message(role="system", content=SYSTEM),
            ollama.Message(role="user", content="Say hello.", images=None),
        ],
        tools=None,
        stream=True,
        keep_alive=keep_alive,
        options=OPTIONS | {"num_predict": 16, "temperature": 0},
        think=False,
        format=None,
    )
    told = await read(stream)
    assert told["content"]
    assert (told["thinking"], told["tool_calls"]) == ("", [])


async def test_conversation_of_ten_tool_rounds(client: ollama.AsyncClient) -> None:
    """Tool messages have a role and a content and nothing else; calls have no ids."""
    messages = [ollama.Message(role="system", content=SYSTEM), ollama.Message(role="user", content="Lights on!")]
    for number in range(MAX_TOOL_ROUNDS):
        stream = await client.chat(
            model="default",
            messages=list(messages),
            tools=TOOLS,
            stream=True,
            keep_alive="-1s",
            options=OPTIONS | {"num_predict": 4},
            think=False,
            format=None,
        )
        assert (await read(stream))["done_reason"] in ("stop", "length")
        messages += [
            ollama.Message(
                role="assistant",
                content="" if number % 2 else None,
                thinking=None,
                tool_calls=[tool_call("HassTurnOn", area=f"room {number}", domain=["light"])],
            ),
            ollama.Message(role="tool", content=json.dumps({"success": True, "targets": []})),
        ]


async def test_two_calls_of_one_message_and_their_two_results(client: ollama.AsyncClient) -> None:
    messages = [
        ollama.Message(role="system", content=SYSTEM),
        ollama.Message(role="user", content="Lights on, and what is the temperature?"),
        ollama.Message(
            role="assistant",
            content=None,
            tool_calls=[tool_call("HassTurnOn", name="lamp"), tool_call("GetLiveContext")],
        ),
        ollama.Message(role="tool", content='{"success": true}'),
        ollama.Message(role="tool", content='{"result": "21 degrees"}'),
    ]
    stream = await client.chat(
        model="default", messages=messages, tools=TOOLS, stream=True, options=OPTIONS | {"num_predict": 4}, think=False
    )
    assert (await read(stream))["done_reason"] in ("stop", "length")


async def test_task_whose_answer_has_a_structure(client: ollama.AsyncClient) -> None:
    """`ai_task.generate_data` sends the schema of what it wants as the format."""
    structure = {
        "type": "object",
        "properties": {
            "cheerful": {"type": "boolean", "description": "Whether it is"},
            "size": {"type": "string", "enum": ["small", "big"]},
        },
        "required": ["cheerful", "size"],
    }
    stream = await client.chat(
        model="default",
        messages=[
            ollama.Message(role="system", content=SYSTEM),
            ollama.Message(role="user", content="Describe a cat."),
        ],
        tools=None,
        stream=True,
        keep_alive=-1,
        options=OPTIONS | {"temperature": 0, "num_predict": 200},
        think=False,
        format=structure,
    )
    data = json.loads((await read(stream))["content"])
    assert (type(data["cheerful"]), data["size"] in ("small", "big")) == (bool, True)


async def test_call_that_the_model_makes_is_read(daemon: Daemon) -> None:
    """Forced by an extension of ours: the default model calls nothing by itself."""
    body = {
        "model": "default",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is on?"}],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "GetLiveContext"}},
        "parallel_tool_calls": False,
        "options": OPTIONS | {"num_predict": 96},
    }

    async def responses() -> AsyncIterator[ollama.ChatResponse]:
        async with daemon.async_client() as http, http.stream("POST", "/api/chat", json=body) as response:
            async for line in response.aiter_lines():
                yield ollama.ChatResponse.model_validate_json(line)

    told = await read(responses())
    (call,) = told["tool_calls"]
    assert call["function"]["name"] == "GetLiveContext"
    assert (told["content"], told["done_reason"]) == ("", "stop")


async def test_wrong_key_asks_for_another_one(start_daemon: Callable[..., Daemon]) -> None:
    """401 starts its re-authentication; any other 4xx would be taken for "not Ollama"."""
    daemon = start_daemon("server.auth=keys")
    key = daemon.keys("add", "home-assistant").split()[-1]
    async with ollama.AsyncClient(host=daemon.url, headers={"Authorization": "Bearer wrong"}) as stranger:
        for ask in (stranger.list, stranger.ps):
            with pytest.raises(ollama.ResponseError) as raised:
                await ask()
            assert raised.value.status_code == 401
    async with ollama.AsyncClient(host=daemon.url, headers={"Authorization": f"Bearer {key}"}) as client:
        assert len((await client.list()).models) == 1
