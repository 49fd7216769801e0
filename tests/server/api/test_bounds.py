"""No list that a client sends keeps others waiting: each has a length, and its first mistake is its last."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import homeai.server.app  # noqa: F401  all bodies that there are
from homeai.errors import InvalidRequest
from homeai.server.api.anthropic_bodies import MessagesBody
from homeai.server.api.body import MAX_ENTRIES, Body, parse_body
from homeai.server.api.ollama_bodies import ChatBody as OllamaChatBody
from homeai.server.api.openai_bodies import ChatBody
from homeai.server.api.responses_bodies import ResponsesBody

MESSAGE = {"role": "user", "content": "a"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}] * (MAX_ENTRIES + 1)}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}] * (MAX_ENTRIES + 1)}


def bodies(model: type[Body] = Body) -> Iterator[type[Body]]:
    for body in model.__subclasses__():
        if body.__module__.startswith("homeai."):
            yield body
            yield from bodies(body)


def lists(schema: object) -> Iterator[dict[str, object]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for name, part in schema.items():
            if name != "json_schema_input_schema":  # what OpenAPI says, not what is checked
                yield from lists(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from lists(part)


@pytest.mark.parametrize(
    "model", sorted(set(bodies()), key=str), ids=lambda model: f"{model.__module__}.{model.__name__}"
)
def test_every_list_of_a_body_is_bounded(model: type[Body]) -> None:
    unbounded = [
        each["items_schema"]
        for each in lists(model.__pydantic_core_schema__)
        if not each.get("fail_fast") or each.get("max_length") is None
    ]
    assert not unbounded


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (ChatBody, {"messages": [MESSAGE] * (MAX_ENTRIES + 1)}),
        (ChatBody, {"messages": [PARTS]}),
        (ChatBody, {"messages": [CALLS]}),
        (ChatBody, {"messages": [MESSAGE], "response_fields": ["a"] * (MAX_ENTRIES + 1)}),
        (ChatBody, {"messages": [MESSAGE], "modalities": ["text"] * (MAX_ENTRIES + 1)}),
        (OllamaChatBody, {"messages": [MESSAGE] * (MAX_ENTRIES + 1)}),
        (OllamaChatBody, {"messages": [CALLS]}),
        (ResponsesBody, {"input": [MESSAGE] * (MAX_ENTRIES + 1)}),
        (ResponsesBody, {"input": [PARTS]}),
        (ResponsesBody, {"input": "a", "include": ["a"] * (MAX_ENTRIES + 1)}),
        (MessagesBody, {"max_tokens": 1, "messages": [MESSAGE] * (MAX_ENTRIES + 1)}),
        (MessagesBody, {"max_tokens": 1, "messages": [PARTS]}),
        (MessagesBody, {"max_tokens": 1, "messages": [MESSAGE], "system": PARTS["content"]}),
    ],
)
def test_too_many_of_anything_are_refused_with_both_counts(model: type[Body], fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_ENTRIES} items after validation, not") as caught:
        parse_body(json.dumps(fields).encode(), model)
    assert caught.value.param
