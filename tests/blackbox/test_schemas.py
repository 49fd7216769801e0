"""Schemas at the edges, as a tool's parameters and as an answer's form, on every API.

What can be enforced is; what cannot is refused with the tool, the place and the keyword, before anything is asked.
Cases G1, G2, G3, G5, G7, G9, G16.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.blackbox.apis import message_of
from tests.blackbox.asking import assert_serves, post
from tests.daemon import Daemon

Schema = dict[str, Any]
Body = dict[str, Any]
ASKED = [{"role": "user", "content": "The light in the kitchen, please."}]
GREEDY = {"temperature": 0}


def _function(name: str, schema: Schema) -> Body:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


FORMS: dict[str, Callable[[Schema], Body]] = {  # of an answer
    "/v1/chat/completions": lambda schema: {
        "messages": ASKED,
        "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}},
    },
    "/v1/completions": lambda schema: {"prompt": "JSON:", "json_schema": schema},
    "/v1/responses": lambda schema: {
        "input": "Light!",
        "text": {"format": {"type": "json_schema", "name": "form", "schema": schema}},
    },
    "/v1/messages": lambda schema: {
        "messages": ASKED,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    },
    "/api/chat": lambda schema: {"messages": ASKED, "format": schema},
    "/api/generate": lambda schema: {"prompt": "JSON:", "format": schema},
    "/completion": lambda schema: {"prompt": "JSON:", "json_schema": schema},
}
TOOLS: dict[str, Callable[[str, Schema], Body]] = {  # one that must be called
    "/v1/chat/completions": lambda name, schema: {
        "messages": ASKED,
        "tools": [_function("other", {}), _function(name, schema)],
        "tool_choice": {"type": "function", "function": {"name": name}},
    },
    "/v1/responses": lambda name, schema: {
        "input": "Light!",
        "tools": [{"type": "function", "name": name, "parameters": schema}],
        "tool_choice": {"type": "function", "name": name},
    },
    "/v1/messages": lambda name, schema: {
        "messages": ASKED,
        "tools": [{"name": "other", "input_schema": {"type": "object"}}, {"name": name, "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": name, "disable_parallel_tool_use": True},
    },
    "/api/chat": lambda name, schema: {
        "messages": ASKED,
        "tools": [_function("other", {}), _function(name, schema)],
        "tool_choice": {"type": "function", "function": {"name": name}},
        "parallel_tool_calls": False,
    },
}
LIMITS: dict[str, Callable[[int], Body]] = {
    "/v1/responses": lambda count: GREEDY | {"max_output_tokens": count},
    "/api/chat": lambda count: {"stream": False, "options": GREEDY | {"num_predict": count}},
    "/api/generate": lambda count: {"stream": False, "options": GREEDY | {"num_predict": count}},
    "/completion": lambda count: GREEDY | {"n_predict": count},
}

every_form = pytest.mark.parametrize("path", FORMS)
every_tool = pytest.mark.parametrize("path", TOOLS)


def limited(path: str, body: Body, count: int) -> Body:
    limit = LIMITS.get(path, lambda count: GREEDY | {"max_tokens": count})
    return body | limit(count)


def answer_of(daemon: Daemon, path: str, schema: Schema, count: int = 64) -> Any:
    """The value that is said."""
    response = post(daemon, limited(path, FORMS[path](schema), count), path)
    assert response.status_code == 200, response.text
    answer = response.json()
    match path:
        case "/v1/chat/completions":
            text = answer["choices"][0]["message"]["content"]
        case "/v1/completions":
            text = answer["choices"][0]["text"]
        case "/v1/responses":
            text = answer["output"][0]["content"][0]["text"]
        case "/v1/messages":
            text = answer["content"][0]["text"]
        case "/api/chat":
            text = answer["message"]["content"]
        case "/api/generate":
            text = answer["response"]
        case _:
            text = answer["content"]
    return json.loads(text)


def arguments_of(daemon: Daemon, path: str, schema: Schema) -> Any:
    """What the tool is called with."""
    response = post(daemon, limited(path, TOOLS[path]("set_light", schema), 64), path)
    assert response.status_code == 200, response.text
    answer = response.json()
    match path:
        case "/v1/chat/completions":
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            return json.loads(call["function"]["arguments"])
        case "/v1/responses":
            return json.loads(answer["output"][0]["arguments"])
        case "/v1/messages":
            return answer["content"][0]["input"]
        case _:
            (call,) = answer["message"]["tool_calls"]
            return call["function"]["arguments"]


def refusal_of(daemon: Daemon, path: str, body: Body) -> str:
    response = post(daemon, limited(path, body, 1), path)
    assert response.status_code == 400, response.text
    return message_of(response)


def deep(depth: int, inner: Schema) -> Schema:
    for _ in range(depth):
        inner = {"type": "object", "properties": {"x": inner}, "required": ["x"]}
    return inner


# ---- what cannot be enforced ------------------------------------------------------------------------------


UNENFORCEABLE = [  # the schema of a property `a`, and the words that the refusal has
    ({"type": "string", "pattern": r"^hello there indeed\!$"}, "pattern"),
    ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    ({"type": "string", "pattern": "("}, "pattern"),
    ({"not": {"type": "string"}}, "not"),
    ({"type": "banana"}, "type"),
    ({"$ref": "#/nowhere"}, "#/nowhere"),
    ({"$ref": "https://example.com/schema"}, "$ref"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "Length"),
]


@every_form
@pytest.mark.parametrize(("part", "word"), UNENFORCEABLE, ids=lambda value: json.dumps(value))
def test_answer_whose_form_cannot_be_kept_is_refused(daemon: Daemon, path: str, part: Schema, word: str) -> None:
    """G1, G16: never an answer without it."""
    message = refusal_of(daemon, path, FORMS[path]({"type": "object", "properties": {"a": part}, "required": ["a"]}))
    assert word in message
    assert "properties" in message


@every_tool
@pytest.mark.parametrize(("part", "word"), UNENFORCEABLE, ids=lambda value: json.dumps(value))
def test_tool_whose_parameters_cannot_be_kept_is_refused_by_name(
    daemon: Daemon, path: str, part: Schema, word: str
) -> None:
    """G1, G9: among many, with the place and the keyword."""
    body = TOOLS[path]("set_light", {"type": "object", "properties": {"a": part}, "required": ["a"]})
    message = refusal_of(daemon, path, body)
    assert word in message
    assert "tools[" in message or "set_light" in message


@every_tool
@pytest.mark.parametrize("bounds", [{"maxLength": 65536}, {"minLength": 65536}, {"pattern": "a{65536}"}], ids=str)
def test_string_of_any_length_is_written_or_refused_by_name(daemon: Daemon, path: str, bounds: Schema) -> None:
    """G9"""
    schema = {"type": "object", "properties": {"a": {"type": "string"} | bounds}, "required": ["a"]}
    response = post(daemon, limited(path, TOOLS[path]("set_light", schema), 2), path)
    if response.status_code != 200:
        assert response.status_code == 400
        assert next(iter(bounds)) in message_of(response)
        assert "tools[" in message_of(response) or "set_light" in message_of(response)


@pytest.mark.parametrize("depth", [60, 1_000, 20_000, 60_000])
@pytest.mark.parametrize("path", FORMS)
def test_schema_of_any_depth_leaves_the_engine_alive(daemon: Daemon, path: str, depth: int) -> None:
    """G7"""
    before = daemon.engines
    inner = "{" + '"type":"object","properties":{"x":{' * depth + '"type":"string"' + "}}" * depth + "}"
    whole = json.dumps(FORMS[path]({"here": 1})).replace('{"here": 1}', inner)
    response = post(daemon, whole.encode(), path)
    assert response.status_code == 400 or (depth == 60 and response.status_code == 200), response.text
    assert daemon.engines == before
    assert_serves(daemon)


@pytest.mark.parametrize("depth", [1_000, 60_000])
def test_grammar_of_any_depth_leaves_the_engine_alive(daemon: Daemon, depth: int) -> None:
    """G7"""
    before = daemon.engines
    grammar = "root ::= " + "(" * depth + '"a"' + ")" * depth
    assert post(daemon, {"prompt": "a", "max_tokens": 1, "grammar": grammar}).status_code == 400
    assert daemon.engines == before
    assert_serves(daemon)


# ---- what can ---------------------------------------------------------------------------------------------


@every_form
def test_pattern_is_kept_to_the_letter(daemon: Daemon, path: str) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^hello there indeed!$"}}, "required": ["a"]}
    said = answer_of(daemon, path, {"type": "object", "additionalProperties": False} | schema)
    assert said == {"a": "hello there indeed!"}


LONG = {
    "string": {"type": "string", "maxLength": 2000},
    "strings": {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 2000}},
}


@every_form
@pytest.mark.parametrize("name", LONG)
def test_large_bounds_are_kept_or_refused_by_their_place(daemon: Daemon, path: str, name: str) -> None:
    """G3"""
    schema = deep(3, {"type": "object", "properties": {"a": LONG[name]}, "required": ["a"]})
    response = post(daemon, limited(path, FORMS[path](schema), 4), path)
    if response.status_code != 200:
        assert response.status_code == 400
        assert "max" in message_of(response)


REFERRED = {
    "item": {
        "$defs": {"one": {"anyOf": [{"enum": ["kitchen", "hall"]}, {"type": "null"}]}},
        "properties": {"a": {"$ref": "#/$defs/one/anyOf/0"}},
    },
    "definition": {
        "definitions": {"room": {"enum": ["kitchen", "hall"]}},
        "properties": {"a": {"$ref": "#/definitions/room"}},
    },
    "chain": {
        "$defs": {"room": {"$ref": "#/$defs/inner"}, "inner": {"type": "string", "enum": ["kitchen", "hall"]}},
        "properties": {"a": {"allOf": [{"$ref": "#/$defs/room"}]}},
    },
}


@every_form
@pytest.mark.parametrize("name", REFERRED)
def test_values_behind_a_reference_are_the_only_ones(daemon: Daemon, path: str, name: str) -> None:
    """G5: of an answer."""
    schema = {"type": "object", "required": ["a"], "additionalProperties": False} | REFERRED[name]
    assert answer_of(daemon, path, schema) in ({"a": "kitchen"}, {"a": "hall"})


@every_tool
@pytest.mark.parametrize("name", REFERRED)
def test_arguments_behind_a_reference_are_the_only_ones(daemon: Daemon, path: str, name: str) -> None:
    """G5: of a call."""
    schema = {"type": "object", "required": ["a"], "additionalProperties": False} | REFERRED[name]
    assert arguments_of(daemon, path, schema) in ({"a": "kitchen"}, {"a": "hall"})


@every_tool
@pytest.mark.parametrize("schema", [{"type": "object", "properties": {}}, {"type": "object"}, {}], ids=str)
def test_tool_without_parameters_is_called_with_an_object(daemon: Daemon, path: str, schema: Schema) -> None:
    """G2"""
    closed = {"additionalProperties": False} if schema == {"type": "object"} else {}
    assert isinstance(arguments_of(daemon, path, schema | closed), dict)
