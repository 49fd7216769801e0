"""What Codex asks, replayed: its request shapes, and the events that it acts upon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.blackbox.stories import story
from tests.daemon import Daemon

HEADERS = {
    "accept": "text/event-stream",
    "authorization": "Bearer unused",
    "originator": "codex_cli_rs",
    "session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "user-agent": "codex_cli_rs/0.80.0 (Ubuntu 24.04; x86_64)",
}
SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a shell command and returns its output.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The command to execute"},
            "workdir": {"type": "string"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. This is a FREEFORM tool: do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
}
TOOLS = [SHELL, PATCH, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"}]


SAFETY = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be safe."}]}


@pytest.fixture
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.client(headers=HEADERS) as client:
        yield client


def user(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def turn(*items: object, seed: int = 1, **fields: object) -> dict[str, object]:
    return {
        "model": "default",
        "instructions": f"You are Codex. {story(100, seed)}",
        "input": [SAFETY, *items],
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "text": {"verbosity": "medium"},
    } | fields


def ask(http: httpx.Client, body: dict[str, object]) -> list[Any]:
    """The events of an answer that ends as Codex insists: the last has the response, with its usage."""
    response = http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    events = [json.loads(block.partition("\n")[2].removeprefix("data: ")) for block in blocks]
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    assert last["response"]["id"]
    assert last["response"]["usage"].keys() >= {"input_tokens", "output_tokens", "total_tokens"}
    return events


def test_turn_is_answered_and_what_was_skipped_is_told(http: httpx.Client) -> None:
    body = turn(user("Hi"), max_output_tokens=4)
    ask(http, body)
    notes = http.post("/v1/responses", json=body | {"stream": False}).headers["x-homeai-notes"]
    assert "'web_search'" in notes
    assert "'local_shell'" in notes


def test_next_turn_finds_its_beginning_in_the_cache(http: httpx.Client) -> None:
    usages = [ask(http, turn(user("Hi"), seed=901, max_output_tokens=1))[-1]["response"]["usage"] for _ in range(2)]
    assert usages[1]["input_tokens_details"]["cached_tokens"] > 100


def forced(kind: str, name: str) -> dict[str, object]:
    """A base model would write arguments until it is stopped."""
    return {"tool_choice": {"type": kind, "name": name}, "temperature": 0, "max_output_tokens": 48}


def test_call_of_a_custom_tool_is_announced_by_its_own_name_and_done_only_when_it_is_whole(http: httpx.Client) -> None:
    events = ask(http, turn(user("Edit."), **forced("custom", "apply_patch")))
    added, done = (
        [event["item"] for event in events if event["type"] == f"response.output_item.{end}"]
        for end in ("added", "done")
    )
    (call,) = added
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "")
    assert done == events[-1]["response"]["output"]
    assert len(done) == (events[-1]["type"] == "response.completed")


def test_call_of_its_shell_is_done_only_when_it_is_whole(http: httpx.Client) -> None:
    events = ask(http, turn(user("List."), **forced("function", "shell")))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert len(done) == (events[-1]["type"] == "response.completed")
    assert all(isinstance(json.loads(call["arguments"])["command"], list) for call in done)


def test_calls_and_their_outputs_go_back_in(http: httpx.Client) -> None:
    items = [
        user("Look."),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first."}], "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "***"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a\nb\n"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": '{"output":"Success."}'},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        user("Thanks."),
    ]
    ask(http, turn(*items, max_output_tokens=4))


def test_prompt_that_is_too_long_is_told_before_the_stream(http: httpx.Client) -> None:
    response = http.post("/v1/responses", json=turn(user("word " * 40_000)))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_half_an_emoji_does_not_end_the_session(http: httpx.Client) -> None:
    """E6"""
    body = turn(user("half \ud83d of it"), max_output_tokens=2, stream=False)
    assert http.post("/v1/responses", content=json.dumps(body)).status_code == 200
