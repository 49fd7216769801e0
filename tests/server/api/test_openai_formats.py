"""What form an answer must have, and how much is thought before it: one meaning for many words."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest
from homeai.server.api.body import parse_body
from homeai.server.api.openai_bodies import ChatBody, CompletionBody, SamplingBody
from homeai.server.conversation import AnswerFormat

SCHEMA = {"type": "object", "properties": {"a": {"type": "null", "default": None}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
PATH = "response_format.json_schema.schema"


def chat(**fields: object) -> ChatBody:
    return parse_body(json.dumps({"messages": [{"role": "user", "content": "a"}]} | fields).encode(), ChatBody)


def completion(**fields: object) -> CompletionBody:
    return parse_body(json.dumps({"prompt": "a"} | fields).encode(), CompletionBody)


def refused(body: SamplingBody) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        body.answer_format()
    return caught.value.param


@pytest.mark.parametrize("body", [chat, completion])
@pytest.mark.parametrize(
    ("fields", "wish"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"grammar": ""}, None),
        ({"response_format": {"type": "json_object"}}, AnswerFormat({})),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, AnswerFormat(SCHEMA)),
        ({"response_format": JSON_SCHEMA}, AnswerFormat(SCHEMA, path=PATH)),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, AnswerFormat({}, path=PATH)),
        ({"json_schema": SCHEMA}, AnswerFormat(SCHEMA, path="json_schema")),
        ({"json_schema": {}}, AnswerFormat({}, path="json_schema")),
        ({"grammar": "root ::= [a-z]"}, AnswerFormat(grammar="root ::= [a-z]", path="grammar")),
        ({"grammar": "x", "response_format": {"type": "text"}}, AnswerFormat(grammar="x", path="grammar")),
    ],
    ids=str,
)
def test_form_of_the_answer(body: type, fields: dict[str, object], wish: AnswerFormat | None) -> None:
    assert body(**fields).answer_format() == wish


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "banana"}}, "response_format.type"),
        ({"response_format": {"type": ["x"]}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, PATH),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}, PATH),
        ({"response_format": {"type": "json_object", "schema": []}}, "response_format.schema"),
        ({"json_schema": "x"}, "json_schema"),
        ({"json_schema": {}, "grammar": "x"}, "json_schema"),
        ({"response_format": JSON_SCHEMA, "grammar": "x"}, "grammar"),
        ({"response_format": JSON_SCHEMA, "json_schema": {}}, "json_schema"),
    ],
    ids=str,
)
def test_form_that_is_not_whole_or_not_one_is_refused(fields: dict[str, object], param: str) -> None:
    assert refused(chat(**fields)) == refused(completion(**fields)) == param


@pytest.mark.parametrize(
    ("fields", "thinks", "effort"),
    [
        ({}, None, None),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "minimal"}, True, "low"),
        ({"reasoning_effort": "medium"}, True, "medium"),
        ({"reasoning_effort": "xhigh"}, True, "high"),
        ({"reasoning": {"effort": "low"}}, True, "low"),
        ({"reasoning": {"effort": None, "summary": "auto"}}, None, None),
        ({"reasoning": {"enabled": True}}, True, None),
        ({"reasoning": {"enabled": False}}, False, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, None),
        ({"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 0}, True, None),
        ({"thinking_budget_tokens": 0}, False, None),
        ({"thinking_budget_tokens": -1}, None, None),
    ],
    ids=str,
)
def test_thinking_is_switched_by_many_words(fields: dict[str, object], thinks: bool | None, effort: str | None) -> None:
    asked = chat(**fields).chat()
    assert (asked.thinks, asked.reasoning_effort) == (thinks, effort)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "banana"},
        {"reasoning_effort": 5},
        {"reasoning": "x"},
        {"reasoning_format": "banana"},
        {"chat_template_kwargs": []},
        {"chat_template_kwargs": {"enable_thinking": "false"}},
    ],
    ids=str,
)
def test_word_for_thinking_that_means_nothing_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields).chat()
    assert (caught.value.param or "").startswith(*fields)


@pytest.mark.parametrize(
    ("fields", "thoughts"),
    [
        ({}, "apart"),
        ({"reasoning_format": "deepseek"}, "apart"),
        ({"reasoning_format": "none"}, "inline"),
        ({"include_reasoning": False}, "hidden"),
        ({"reasoning": {"exclude": True}}, "hidden"),
    ],
    ids=str,
)
def test_thoughts_go_where_the_client_wants_them(fields: dict[str, object], thoughts: str) -> None:
    assert chat(**fields).thoughts == thoughts


@pytest.mark.parametrize(
    ("fields", "continues"),
    [
        ({}, None),
        ({"continue_final_message": True}, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, True),
        ({"continue_final_message": False}, False),
        ({"add_generation_prompt": True}, False),
        ({"continue_final_message": False, "add_generation_prompt": True}, False),
    ],
    ids=str,
)
def test_last_message_is_continued_or_answered(fields: dict[str, object], continues: bool | None) -> None:
    assert chat(**fields).chat().continues is continues


@pytest.mark.parametrize(
    "fields",
    [{"continue_final_message": True, "add_generation_prompt": True}, {"add_generation_prompt": False}],
    ids=str,
)
def test_last_message_cannot_be_both_or_neither(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        chat(**fields).chat()
