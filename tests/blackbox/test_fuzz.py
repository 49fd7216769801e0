"""Bodies broken on purpose, at every path that takes one: refused in the words of its API, or answered.

Never an error of the server, never a hang, and the engine does not notice. Cases E4, E5, E6, E8, E10, E11, E12, E14
and G7 of every API; what exactly is said of the fields of OpenAI's is in `test_bodies.py`.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from tests.blackbox.asking import assert_serves, assert_unharmed
from tests.daemon import Daemon

MAX_BODY_BYTES = 2_000_000
ANSWER_TIMEOUT_S = 60.0
HALF = "\ud83d"
UNASKED = "/api/admin/"  # takes the model away

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c", "content": "{}"},
]
CHAT = {"messages": TALK, "tools": TOOLS, "tool_choice": "none", "max_tokens": 1}
OLLAMA_TALK = [
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "tool_name": "f", "content": "{}"},
]
MESSAGES = {
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "none"},
    "thinking": {"type": "disabled"},
    "metadata": {"user_id": "u"},
}
INPUT = {
    "instructions": "i",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "{}"},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "none",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "none"},
}
OPTIONS = {"num_predict": 1, "temperature": 0, "stop": ["x"]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "a", "max_tokens": 1, "logit_bias": {"5": 1}},
    "/v1/fim/completions": {"prompt": "a", "suffix": "b", "max_tokens": 1},
    "/v1/responses": INPUT | {"max_output_tokens": 1},
    "/v1/responses/input_tokens": INPUT,
    "/v1/embeddings": {"input": ["a", [5]], "encoding_format": "float"},
    "/v1/batches": {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h"},
    "/v1/messages": MESSAGES | {"max_tokens": 1, "stop_sequences": ["x"]},
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": {"messages": OLLAMA_TALK, "tools": TOOLS, "options": OPTIONS, "format": "json", "think": False},
    "/api/generate": {"prompt": "a", "system": "s", "options": OPTIONS, "keep_alive": "5m"},
    "/api/embed": {"model": "default", "input": ["a"], "options": OPTIONS},
    "/api/embeddings": {"model": "default", "prompt": "a"},
    "/api/show": {"model": "default"},
    "/api/pull": {"model": "default"},
    "/completion": {"prompt": ["a", 5], "n_predict": 1, "samplers": ["top_k"]},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}], "n_predict": 1},
    "/tokenize": {"content": ["a", 5]},
    "/detokenize": {"tokens": [5]},
    "/apply-template": CHAT,
}
NOT_FOUND = ("/v1/batches",)  # what the body asks for

NOT_JSON = [
    b"",
    b" \n",
    b"{",
    b'{:"model":"x"}',
    b'{"prompt":"a",}',
    b'{"a":1} {"a":2}',
    b'{"a":"a\nb"}',
    b"model=x&stream=true",
    b'{"a":"\xc4\xe3\xba\xc3"}',  # GBK
    b'{"a":"\xe9"}',  # Latin-1
    b'{"a":"\xed\xa0\xbd"}',  # a surrogate in UTF-8, which is none
    '{"a":"a"}'.encode("utf-16"),
    b"\x00\x01\x02",
    b"[]",
    b'[{"a":"a"}]',
    b"null",
    b"true",
    b"5",
    b'"a"',
    b'{"a":NaN}',
    b'{"a":[-Infinity]}',
    b'{"a":' + b"9" * 5000 + b"}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":"\\ud83d","b":' + b"[" * 950 + b"]" * 950 + b"}",
]
PACKED = [
    ("gzip", b"no gzip at all"),
    ("gzip", gzip.compress(b"{}")[:-4]),
    ("gzip", gzip.compress(b"[1")),
    ("gzip", gzip.compress(b" " * (MAX_BODY_BYTES + 1))),
    ("zstd", b"no zstd at all"),
    ("zstd", zstandard.compress(b'{"a":1}' * 100)[:-4]),
    ("zstd", zstandard.compress(b" " * (MAX_BODY_BYTES + 1))),
    ("br", b"{}"),
    ("gzip, gzip", b"{}"),
]


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"items": [value]}
    return value


WRONG: list[object] = [
    *(None, True, 0, -1, 1.5, 1e308, 10**30),
    *("", "x", HALF, "x" * 100_000),
    *([], [None], [[]], {}, {"x": {"y": []}}, [{}] * 300, nested(200)),
]
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict")
BOUNDLESS: list[object] = [None, -1, 1e308, 10**30]  # of a limit no mistakes, but long answers
ONE_OF_EACH: list[object] = [True, -1, 1.5, 10**30, "x", HALF, [[]], {"x": {"y": []}}]


@pytest.fixture(scope="module")
def house(fim_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With a short context: no mistake can ask for a long answer. Nothing that failed is left in it."""
    limits = "scheduler.max_model_len=192", "scheduler.max_num_seqs=4", f"server.max_body_bytes={MAX_BODY_BYTES}"
    with Daemon.start(fim_model_path, tmp_path_factory.mktemp("fuzz"), *limits) as running:
        (engine,) = running.engines
        yield running
        assert running.engines == [engine]
        assert_unharmed(running)


@pytest.fixture
def client(house: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=house.url, timeout=ANSWER_TIMEOUT_S) as client:
        yield client
    assert_serves(house)


every_path = pytest.mark.parametrize("path", BODIES)


def test_every_path_that_takes_a_body_is_here(house: Daemon) -> None:
    paths = httpx.get(f"{house.url}/openapi.json").json()["paths"]
    bodies = {path: item["post"]["requestBody"]["content"] for path, item in paths.items() if has_body(item)}
    taken = {path for path, content in bodies.items() if "application/json" in content}
    assert {path for path in taken if not path.startswith(UNASKED)} == BODIES.keys()


def has_body(item: dict[str, Any]) -> bool:
    return "requestBody" in item.get("post", {})


@every_path
def test_sound_body_is_taken(client: httpx.Client, path: str) -> None:
    response = client.post(path, json=BODIES[path])
    assert response.status_code == (404 if path in NOT_FOUND else 200), response.text


@every_path
def test_what_is_no_json_object_is_refused(client: httpx.Client, path: str) -> None:
    for raw in NOT_JSON:
        for target in (path, path.removeprefix("/v1")):
            response = client.post(target, content=raw)
            assert response.status_code == 400, (raw[:40], response.text)
            assert "body" in message_of(response), raw[:40]


@every_path
def test_what_cannot_be_unpacked_is_refused(client: httpx.Client, path: str) -> None:
    for encoding, packed in PACKED:
        response = client.post(path, content=packed, headers={"content-encoding": encoding})
        assert response.status_code == (413 if len(packed) > 60 and "br" not in encoding else 400), (encoding, packed)
        message_of(response)


@every_path
def test_body_over_the_limit_is_refused_by_its_bytes(client: httpx.Client, path: str) -> None:
    """E14, with and without a length."""
    raw = json.dumps(BODIES[path] | {"x": "x" * MAX_BODY_BYTES}).encode()
    for content in (raw, iter([raw[:1000], raw[1000:]])):
        response = client.post(path, content=content)
        assert response.status_code == 413
        assert str(MAX_BODY_BYTES) in message_of(response)


@every_path
def test_last_of_two_equal_keys_counts(client: httpx.Client, path: str) -> None:
    sound = json.dumps(BODIES[path])
    name = next(iter(BODIES[path]))
    raw = f'{{"{name}": 5.5, {sound[1:]}'.encode()
    assert client.post(path, content=raw).status_code == (404 if path in NOT_FOUND else 200)


@every_path
def test_every_field_may_hold_anything(client: httpx.Client, house: Daemon, path: str) -> None:
    """Of a sound body each part with every wrong value, and of the document's other fields each with one of a kind."""
    document = client.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    schema = document["schema"]
    fields = {name for one in schema.get("anyOf", [schema]) for name in one["properties"]}
    absent = [([name], wrong) for name in sorted(fields - BODIES[path].keys()) for wrong in ONE_OF_EACH]
    present = [(place, wrong) for place in places(BODIES[path]) for wrong in WRONG]
    for place, wrong in absent + present:
        if place[-1] in LIMITS and wrong in BOUNDLESS:
            continue
        body = replaced(BODIES[path], place, wrong)
        response = client.post(path, content=json.dumps(body).encode())
        if response.status_code != 200:
            assert 400 <= response.status_code < 500, (response.text, str(body)[:2000])
            message_of(response)


def places(value: object) -> Iterator[list[int | str]]:
    """Where the parts of a body are."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield [key]
        yield from ([key, *rest] for rest in places(part))


def replaced(body: dict[str, Any], place: list[int | str], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    part: Any = changed
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return changed


def message_of(response: httpx.Response) -> str:
    """What a refusal says, in the shape of the API that was asked."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == response.headers["request-id"] != ""
    assert response.headers["x-should-retry"] == "false"
    body, path = response.json(), response.url.path
    error = body["error"]
    if path.startswith(("/v1/messages", "/messages")):
        assert (body["type"], body.keys()) == ("error", {"type", "error", "request_id"})
        assert error.keys() == {"type", "message"}
    elif path.startswith("/api/"):
        assert body.keys() == {"error"}
        return checked(error)
    elif path.startswith(("/v1/", "/chat", "/completions", "/fim", "/responses", "/embeddings", "/batches")):
        assert body.keys() == {"error"}
        assert error.keys() >= {"message", "type", "param", "code"}
    else:
        assert body.keys() == {"error"}
        assert error.keys() >= {"code", "message", "type"}
        assert error["code"] == response.status_code
    return checked(error["message"])


def checked(message: object) -> str:
    assert isinstance(message, str)
    assert message
    return message
