"""Conversations as clients send them: odd, empty, partial, in parts, out of order. Cases F1 to F14."""

from __future__ import annotations

import pytest

from tests.blackbox.asking import GREEDY, ask, assert_serves, error_of, post
from tests.daemon import Daemon

USER = {"role": "user", "content": "What is the capital of France?"}
ANSWER = "The capital of France is Paris."
CALL = {"id": "call_1", "type": "function", "function": {"name": "light_on", "arguments": "{}"}}
TOOL = {"role": "tool", "tool_call_id": "call_1", "content": '{"ok": true}'}


def chat(daemon: Daemon, *messages: object, max_tokens: int = 12) -> str:
    return ask(daemon, messages=list(messages), max_tokens=max_tokens, **GREEDY).text


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": " \n"}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text", "text": ""}]}],
        [{"role": "system", "content": ""}, USER],
        [{"role": "system", "content": "Be brief."}],
        [{"role": "assistant", "content": "Hello"}],
        [{"role": "assistant", "content": None}],
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, TOOL],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, TOOL],
        [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, TOOL, USER],
        [USER, {"role": "assistant", "content": None}, USER],
        [USER, TOOL | {"tool_call_id": "nobody_declared_it"}],
        [USER, {"role": "function", "name": "light_on", "content": "ok"}],
        [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER],
        [USER, USER, USER],
        [USER, {"role": "system", "content": "Be brief."}],
        [{"role": "system", "content": "One."}, {"role": "system", "content": "Two."}, USER],
        [USER | {"name": "Ann"}],
        [USER | {"refusal": None, "annotations": [], "unknown": {"deep": [1]}}],
        [{"role": "user", "content": "tab\there, bell\x07, nul\x00, escape\x1b, delete\x7f, C1 \x85\x9b"}],
        [{"role": "user", "content": "\ufffe\uffff\ufdd0\ufdd1 noncharacters"}],
    ],
)
def test_conversation_is_answered(daemon: Daemon, messages: list[dict[str, object]]) -> None:
    assert ask(daemon, messages=messages, max_tokens=1).num_tokens <= 1


@pytest.mark.parametrize(
    "content",
    [
        USER["content"],
        [{"type": "text", "text": USER["content"]}],
        [{"type": "text", "text": USER["content"], "cache_control": {"type": "ephemeral"}}],
    ],
    ids=["string", "F6-parts", "part-with-more"],
)
def test_content_may_be_text_or_parts(daemon: Daemon, content: object) -> None:
    assert chat(daemon, {"role": "user", "content": content}) == ANSWER


def test_partial_answer_is_continued(daemon: Daemon) -> None:
    """F7: whether it is a string or a list of parts."""
    for content in ("The capital of", [{"type": "text", "text": "The capital of"}]):
        assert chat(daemon, USER, {"role": "assistant", "content": content}).strip() == "France is Paris."


@pytest.mark.parametrize("role", ["developer", "system"])
def test_instructions_count_wherever_they_stand(daemon: Daemon, role: str) -> None:
    """F11: both roles, before or after the person's message, give the prompt that a system message in front gives."""
    instructions = {"role": role, "content": "Always answer in French."}
    texts = [chat(daemon, instructions, USER), chat(daemon, USER, instructions)]
    assert texts == [chat(daemon, instructions | {"role": "system"}, USER)] * 2


def test_several_system_messages_are_one(daemon: Daemon) -> None:
    parts = [{"role": "system", "content": text} for text in ("Be brief.", "Be kind.")]
    assert chat(daemon, parts[0], USER, parts[1]) == chat(
        daemon, {"role": "system", "content": "Be brief.\n\nBe kind."}, USER
    )


@pytest.mark.parametrize(
    ("messages", "param", "word"),
    [
        pytest.param([], "messages", "empty", id="F2"),
        ("hi", "messages", "list"),
        ({}, "messages", "list"),
        (5, "messages", "list"),
        (True, "messages", "list"),
        ([5], "messages[0]", "object"),
        ([None], "messages[0]", "object"),
        (["hi"], "messages[0]", "object"),
        ([[]], "messages[0]", "object"),
        ([USER, 5], "messages[1]", "object"),
        ([{}], "messages[0].role", "required"),
        ([{"content": "x"}], "messages[0].role", "required"),
        ([{"role": None, "content": "x"}], "messages[0].role", "string"),
        ([{"role": 5, "content": "x"}], "messages[0].role", "string"),
        pytest.param([{"role": "banana", "content": "x"}], "messages[0].role", "banana", id="F12"),
        ([{"role": "User", "content": "x"}], "messages[0].role", "User"),
        ([{"role": "", "content": "x"}], "messages[0].role", "''"),
        ([USER, {"role": "🍌", "content": "x"}], "messages[1].role", "🍌"),
        ([{"role": "x" * 10_000, "content": "x"}], "messages[0].role", "256"),
        ([{"role": "user"}], "messages[0].content", "needs content"),
        ([{"role": "user", "content": None}], "messages[0].content", "needs content"),
        ([{"role": "user", "content": 5}], "messages[0].content", "string"),
        ([{"role": "user", "content": True}], "messages[0].content", "string"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content", "string"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "object"),
        ([{"role": "user", "content": [None]}], "messages[0].content[0]", "object"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type", "required"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "string"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text", "string"),
        ([{"role": "user", "content": [{"type": "text", "text": ["x"]}]}], "messages[0].content[0].text", "string"),
        ([{"role": "user", "content": [{"type": "video"}]}], "messages[0].content[0]", "video"),
        ([USER | {"name": 5}], "messages[0].name", "string"),
        ([USER | {"tool_calls": "x"}], "messages[0].tool_calls", "list"),
    ],
)
def test_message_that_cannot_be_read_is_named(daemon: Daemon, messages: object, param: str, word: str) -> None:
    error = error_of(post(daemon, {"messages": messages}))
    assert error["param"] == param
    assert word in error["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://192.0.2.1/cat.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ],
    ids=["remote-image", "image", "audio", "file"],
)
def test_part_that_is_not_text_is_refused_not_left_out(daemon: Daemon, part: dict[str, object]) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    error = error_of(post(daemon, {"messages": [{"role": "user", "content": content}]}))
    assert (error["code"], error["param"]) == ("unsupported_value", "messages[0].content[1]")
    assert str(part["type"]) in error["message"]
    assert_serves(daemon)
