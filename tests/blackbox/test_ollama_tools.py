"""Calls of tools and answers of a given form, over Ollama's API. Cases G12, G13, G15, G16.

The default model is no assistant: what it calls, and that it calls at all, is forced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import ollama
import pytest
from pydantic import BaseModel, ConfigDict

from tests.blackbox.asking import BOTH_WAYS
from tests.daemon import Daemon

LIGHT = {
    "type": "object",
    "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
    "required": ["room", "on"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "function": {"name": "set_light", "description": "Switch a light.", "parameters": LIGHT}},
    {"type": "function", "function": {"name": "get_context", "parameters": NOTHING}},
]
MESSAGES = [{"role": "user", "content": "Light in the kitchen, please."}]
OPTIONS = {"temperature": 0, "num_predict": 96}


class Light(BaseModel):
    model_config = ConfigDict(extra="forbid")

    room: Literal["kitchen", "hall"]
    on: bool


@pytest.fixture
def client(daemon: Daemon) -> Iterator[ollama.Client]:
    with ollama.Client(host=daemon.url) as client:
        yield client


def one(name: str) -> dict[str, object]:
    """Fields that force one call of a tool."""
    return {"tool_choice": {"type": "function", "function": {"name": name}}, "parallel_tool_calls": False}


def chat(daemon: Daemon, **fields: object) -> list[dict[str, Any]]:
    """The lines of a stream, or the one object, each as the SDK reads it."""
    body = {"model": "default", "messages": MESSAGES, "options": OPTIONS, "tools": TOOLS} | fields
    response = httpx.post(f"{daemon.url}/api/chat", json=body, timeout=120)
    assert response.status_code == 200, response.text
    lines = [json.loads(line) for line in response.text.splitlines()]
    for line in lines:
        ollama.ChatResponse.model_validate(line)
        assert isinstance(line["message"]["content"], str)
    return lines


# ---- tools ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", BOTH_WAYS)
def test_g12_named_tool_is_called_with_an_object(daemon: Daemon, stream: bool) -> None:
    lines = chat(daemon, stream=stream, **one("set_light"))
    (call,) = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert call["id"]
    assert (call["function"]["index"], call["function"]["name"]) == (0, "set_light")
    assert Light.model_validate(call["function"]["arguments"])
    assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "stop")
    assert "".join(line["message"]["content"] for line in lines) == ""


def test_call_comes_in_one_line(daemon: Daemon) -> None:
    call, end = chat(daemon, **one("get_context"))
    (function,) = [part["function"] for part in call["message"]["tool_calls"]]
    assert (function["name"], type(function["arguments"])) == ("get_context", dict)
    assert end["eval_count"] > 2


def test_g13_each_of_several_calls_has_an_index(daemon: Daemon) -> None:
    lines = chat(daemon, tools=TOOLS[:1], tool_choice="required", options={"temperature": 0, "num_predict": 160})
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [*range(len(calls))]
    assert len({call["id"] for call in calls}) == len(calls) > 1


@pytest.mark.parametrize("num_predict", [3, 16])
def test_call_that_is_cut_off_is_not_sent(daemon: Daemon, num_predict: int) -> None:
    lines = chat(daemon, **one("set_light"), options={"temperature": 0, "num_predict": num_predict})
    assert not any("tool_calls" in line["message"] for line in lines)
    assert lines[-1]["done_reason"] == "length"


def test_assistant_may_answer_in_text(client: ollama.Client) -> None:
    def set_light(room: str, on: bool) -> str:
        """Switch a light.

        Args:
            room: where it is
            on: whether it shall be on
        """
        return f"{room} {on}"

    answer = client.chat("default", MESSAGES, tools=[set_light], options={"num_predict": 8})
    assert answer.done


def test_call_and_its_result_go_back_as_the_sdk_sends_them(client: ollama.Client, daemon: Daemon) -> None:
    called = ollama.ChatResponse.model_validate(chat(daemon, **one("set_light"), stream=False)[0])
    messages = [*MESSAGES, called.message, {"role": "tool", "tool_name": "set_light", "content": "done"}]
    assert client.chat("default", messages, tools=TOOLS, options={"num_predict": 4}).done


# ---- form ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", BOTH_WAYS)
def test_answer_fits_a_pydantic_schema(client: ollama.Client, stream: bool) -> None:
    schema = Light.model_json_schema()
    if stream:
        chunks = client.chat("default", MESSAGES, format=schema, options=OPTIONS, stream=True)
        text = "".join(chunk.message.content or "" for chunk in chunks)
    else:
        text = client.chat("default", MESSAGES, format=schema, options=OPTIONS).message.content or ""
    assert Light.model_validate_json(text)


def test_g15_json_is_one_object_that_ends(client: ollama.Client) -> None:
    answer = client.chat(
        "default", MESSAGES, format="json", options={"temperature": 0.5, "seed": 1, "num_predict": 400}
    )
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)
    else:
        assert (answer.message.content or "").startswith("{")


@pytest.mark.parametrize("raw", [False, True])
def test_generated_text_fits_its_schema(client: ollama.Client, raw: bool) -> None:
    answer = client.generate("default", "A light: ", raw=raw, format=LIGHT, options=OPTIONS)
    assert Light.model_validate_json(answer.response or "")


def test_no_format_is_no_format(client: ollama.Client) -> None:
    plain = client.chat("default", MESSAGES, options=OPTIONS).message.content
    assert client.chat("default", MESSAGES, format="", options=OPTIONS).message.content == plain


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "(?=a)b"}, {"type": "banana"}])
def test_g16_schema_that_cannot_be_enforced_is_refused(client: ollama.Client, schema: dict[str, Any]) -> None:
    body = {"type": "object", "properties": {"name": schema}}
    with pytest.raises(ollama.ResponseError, match="format") as raised:
        client.chat("default", MESSAGES, format=body, options=OPTIONS)
    assert raised.value.status_code == 400


def test_tool_whose_schema_cannot_be_enforced_is_named(daemon: Daemon) -> None:
    tool = {"name": "bad_tool", "parameters": {"type": "object", "properties": {"name": {"type": "banana"}}}}
    body = {"model": "default", "messages": MESSAGES, "tools": [{"type": "function", "function": tool}]}
    response = httpx.post(f"{daemon.url}/api/chat", json=body, timeout=120)
    assert response.status_code == 400
    assert "bad_tool" in response.json()["error"]
