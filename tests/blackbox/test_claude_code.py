"""What Claude Code asks, replayed: its request shapes, and what it needs of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.blackbox.stories import story
from tests.daemon import Daemon

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "authorization": "Bearer unused",
    "user-agent": "claude-cli/2.1.177 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
TOOLS = [
    {
        "name": name,
        "description": f"{name} something.",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"path": {"description": "What to look at", "type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    }
    for name in ("Read", "Glob")
]


@pytest.fixture
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.client(headers=HEADERS) as client:
        yield client


def turn(checksum: str, messages: list[dict[str, object]], seed: int = 1, **fields: object) -> dict[str, object]:
    """A request of a session; the first block of `system` has another checksum each time."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={checksum};"
    system = [
        {"type": "text", "text": billing},
        {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **CACHED},
        {"type": "text", "text": story(200, seed), **CACHED},
    ]
    return {
        "model": "claude-opus-4-8",
        "messages": messages,
        "system": system,
        "max_tokens": 4,
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": "s"})},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    } | fields


def user(text: str) -> dict[str, object]:
    blocks = [{"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}]
    return {"role": "user", "content": [*blocks, {"type": "text", "text": text, **CACHED}]}


def ask(http: httpx.Client, body: dict[str, object]) -> list[Any]:
    """The events of an answer: an `event:` line, a `data:` line, a blank one."""
    response = http.post("/v1/messages?beta=true", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert b"\r" not in response.content
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def usage(events: list[Any]) -> Any:
    """As it is at the end, over what it was at the beginning."""
    (delta,) = [event for event in events if event["type"] == "message_delta"]
    return events[0]["message"]["usage"] | delta["usage"]


def test_turns_of_a_session_find_their_beginning_in_the_cache_whatever_their_checksum(http: httpx.Client) -> None:
    first = usage(ask(http, turn("1a2b3", [user("Hi")], seed=801)))
    second = usage(ask(http, turn("9f8e7", [user("Hi")], seed=801)))
    assert second["cache_read_input_tokens"] > 200
    num_prompt = [each["input_tokens"] + each["cache_read_input_tokens"] for each in (first, second)]
    assert num_prompt[0] == num_prompt[1]


def test_count_is_what_the_turn_then_has(http: httpx.Client) -> None:
    body = turn("00000", [user("Hi")], tools=TOOLS)
    wanted = {name: body[name] for name in ("model", "messages", "system", "tools")}
    counted = http.post("/v1/messages/count_tokens?beta=true", json=wanted | {"betas": ["x"]})
    assert counted.status_code == 200, counted.text
    told = usage(ask(http, body))
    assert counted.json() == {"input_tokens": told["input_tokens"] + told["cache_read_input_tokens"]}


def test_warm_up_of_its_connection_is_answered(http: httpx.Client) -> None:
    body = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    response = http.post("/v1/messages?beta=true", json=body | {"metadata": {"user_id": "user_x_account__session_y"}})
    assert response.status_code == 200
    assert response.json()["usage"]["output_tokens"] == 1
    assert http.head("/").status_code == 200


def test_results_of_its_tools_go_back_in(http: httpx.Client) -> None:
    use = [
        {"type": "thinking", "thinking": "Look first.", "signature": "homeai"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
        {"type": "tool_use", "id": "toolu_2", "name": "Glob", "input": {"path": "b"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "     1\ta line"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "<error>none</error>", "is_error": True, **CACHED},
    ]
    messages = [user("Look."), {"role": "assistant", "content": use}, {"role": "user", "content": results}]
    events = ask(http, turn("00000", messages, tools=TOOLS))
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"


def test_prompt_that_is_too_long_is_told_in_the_words_that_make_it_compact(http: httpx.Client) -> None:
    response = http.post("/v1/messages?beta=true", json=turn("00000", [user("word " * 40_000)]))
    assert response.status_code == 400
    error = response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith("prompt is too long: ")
    assert error["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("path", ["/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"])
def test_half_an_emoji_does_not_end_the_session(http: httpx.Client, path: str) -> None:
    """E6: such a message stays in the conversation, and is sent again with every turn."""
    body = turn("00000", [user("half \ud83d of it")], stream=False)
    response = http.post(path, content=json.dumps(body))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_name_of_a_skipped_tool_cannot_write_headers(http: httpx.Client, path: str) -> None:
    tools = [{"type": "web_search_20250305", "name": "a\r\nx-evil: 1\r\n\r\n"}, {"type": "w\u00fcrfel", "name": "🎲"}]
    response = http.post(path, json=turn("00000", [user("Hi")], tools=tools, stream=False))
    assert response.status_code == 200
    assert "x-evil" not in response.headers
    assert "a??x-evil: 1????, ?" in response.headers["x-homeai-notes"]


def test_prompt_that_is_too_long_is_counted_all_the_same(http: httpx.Client) -> None:
    body = turn("00000", [user("word " * 40_000)])
    wanted = {name: body[name] for name in ("model", "messages", "system")}
    response = http.post("/v1/messages/count_tokens?beta=true", json=wanted)
    assert response.status_code == 200, response.text
    assert response.json()["input_tokens"] > 40_000


def test_tools_that_only_anthropic_runs_are_skipped_and_named(http: httpx.Client) -> None:
    tools = [*TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    response = http.post("/v1/messages?beta=true", json=turn("00000", [user("Hi")], tools=tools, stream=False))
    assert response.status_code == 200
    assert "web_search" in response.headers["x-homeai-notes"]
