"""What Home Assistant's own code was seen to send, byte for byte, and whether its reading can take the answers.

`scripts/record-home-assistant` makes the exchanges from a wheel; `test_home_assistant_code.py` runs that code itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.daemon import Daemon
from tests.home_assistant.exchanges import Exchange, recorded
from tests.test_client_pages import PAGES

Event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OLLAMA = recorded("ollama-")
OPENAI = recorded("openai-")
CALL = {"type": "function", "name": "GetLiveContext"}
FORCED = {"tool_choice": CALL, "parallel_tool_calls": False}  # the default model calls nothing by itself


@pytest.fixture(scope="module")
def daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """One whose answers end soon, whatever the model says: nothing that is replayed limits them."""
    return start_daemon("scheduler.max_model_len=1536")


def send(daemon: Daemon, exchange: Exchange, body: str | None = None) -> list[str]:
    """The lines of the answer."""
    content = (exchange.body if body is None else body).encode()
    with httpx.stream(
        exchange.method, daemon.url + exchange.path, headers=exchange.headers, content=content, timeout=120
    ) as response:
        lines = list(response.iter_lines())
        assert response.status_code == 200, lines
    return lines


def says_something(ask: Callable[[], tuple[str, list[Any]]]) -> bool:
    """A base model's answer may be nothing but its end, or the next "User:" of a transcript; not three times."""
    return any(text or calls for text, calls in (ask() for _ in range(3)))


# ---- ollama ----------------------------------------------------------------------------------------------


def read_ollama(lines: list[str]) -> tuple[str, list[Any]]:
    """Text and calls: each line has a message of a role and a content; the last one is done."""
    *pieces, last = [json.loads(line) for line in lines]
    text, calls = "", []
    for piece in (*pieces, last):
        message = piece["message"]
        assert message["role"] == "assistant"
        text += message["content"]
        for call in message.get("tool_calls") or ():
            assert isinstance(call["function"]["arguments"], dict)
            calls.append(call["function"])
    assert not any(piece["done"] for piece in pieces)
    assert last["done"]
    assert last["done_reason"] in ("stop", "length")
    return text, calls


def test_set_up_of_ollama_finds_the_model(daemon: Daemon) -> None:
    (line,) = send(daemon, OLLAMA["ollama-set-up-1"])
    assert [model["model"] for model in json.loads(line)["models"]] == [daemon.status()["model"]["name"]]


@pytest.mark.parametrize("name", [name for name in OLLAMA if "conversation" in name])
def test_ollama_converses(daemon: Daemon, name: str) -> None:
    """F5: also after two calls of one message, whose results have no ids."""
    assert says_something(lambda: read_ollama(send(daemon, OLLAMA[name])))


def test_call_of_ollama_has_an_object_for_arguments(daemon: Daemon) -> None:
    exchange = OLLAMA["ollama-conversation-1"]
    forced = FORCED | {"tool_choice": {"type": "function", "function": {"name": CALL["name"]}}}
    text, (call,) = read_ollama(send(daemon, exchange, json.dumps(json.loads(exchange.body) | forced)))
    assert (text, call["name"], call["arguments"].keys()) == ("", CALL["name"], {"area"})


def test_task_of_ollama_gets_its_structure(daemon: Daemon) -> None:
    text, calls = read_ollama(send(daemon, OLLAMA["ollama-task-1"]))
    data = json.loads(text)
    assert calls == []
    assert data["room"] in ("kitchen", "hall")
    assert type(data["lit"]) is bool


# ---- openai_conversation -----------------------------------------------------------------------------------


def read_openai(lines: list[str]) -> tuple[str, list[Any]]:
    """Text and calls, from the events that are read: an item is added before its deltas, the end has usage."""
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    for event in events:
        Event.validate_python(event)
    text, calls, written = "", [], ""
    kind = None
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                kind, written = event["item"]["type"], event["item"].get("arguments", "")
                call = event["item"]
            case "response.output_text.delta":
                assert kind == "message"
                text += event["delta"]
            case "response.function_call_arguments.delta":
                written += event["delta"]
            case "response.function_call_arguments.done":
                assert kind == "function_call"
                assert call["call_id"]
                calls.append({"name": call["name"], "arguments": json.loads(written)})
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    assert events[-1]["response"]["usage"]["output_tokens"] > 0
    return text, calls


@pytest.mark.parametrize("name", [name for name in OPENAI if "conversation" in name])
def test_openai_conversation_converses(daemon: Daemon, name: str) -> None:
    """F5: the calls' results come each after its call; a tool without a description has null there."""
    assert says_something(lambda: read_openai(send(daemon, OPENAI[name])))


def test_call_of_openai_conversation_comes_in_events_that_it_reads(daemon: Daemon) -> None:
    exchange = OPENAI["openai-conversation-1"]
    text, (call,) = read_openai(send(daemon, exchange, json.dumps(json.loads(exchange.body) | FORCED)))
    assert (text, call["name"], call["arguments"].keys()) == ("", CALL["name"], {"area"})


def test_task_of_openai_conversation_gets_its_structure(daemon: Daemon) -> None:
    """Its schema says `strict` inside, and gives an optional field a list of types."""
    text, calls = read_openai(send(daemon, OPENAI["openai-task-1"]))
    data = json.loads(text)
    assert calls == []
    assert data.keys() == {"room", "lit", "light"}


# ---- the exchanges themselves ------------------------------------------------------------------------------


def test_exchanges_are_of_the_version_that_the_page_names() -> None:
    (version,) = {exchange.home_assistant for exchange in (OLLAMA | OPENAI).values()}
    assert f"Home Assistant {version}" in (PAGES / "home-assistant.md").read_text()


@pytest.mark.parametrize("name", ["ollama-conversation-1", "openai-conversation-1"])
def test_pattern_of_the_page_finds_the_time_in_its_system_prompt(name: str) -> None:
    (pattern,) = re.findall(r"pattern: '(.+?)'", (PAGES / "home-assistant.md").read_text())
    assert len(re.findall(pattern, (OLLAMA | OPENAI)[name].body)) == 1
