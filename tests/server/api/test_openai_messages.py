"""Messages as clients send them back: calls and their results, in all the forms there are. Cases F5, F6, G12."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import parse_body
from homeai.server.api.openai_bodies import ChatBody
from homeai.server.conversation import ChatMessage, ToolCall

ARGUMENTS = "messages[0].tool_calls[0].function.arguments"


def message(**fields: object) -> ChatMessage:
    body = json.dumps({"messages": [{"role": "assistant"} | fields]}).encode()
    (plain,) = parse_body(body, ChatBody).chat().messages
    return plain


def call(arguments: object) -> dict[str, object]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=str)
def test_assistant_with_calls_needs_no_content_f5(content: dict[str, object]) -> None:
    plain = message(**content, tool_calls=[call('{"a": 1}')])
    assert not plain.content
    assert plain.tool_calls == (ToolCall("f", {"a": 1}, "call_1"),)


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        ('{"a": [1, "x"]}', {"a": [1, "x"]}),
        ({"a": 1}, {"a": 1}),
        ("{}", {}),
        ("", {}),
        ("  ", {}),
        ("null", {}),
        (None, {}),
        (r'{"a": "\ud83d"}', {"a": "\ufffd"}),
        (r'{"\ude00": "\ud83d\ude00"}', {"\ufffd": "😀"}),
    ],
    ids=str,
)
def test_arguments_are_an_object_or_its_text_g12(arguments: object, decoded: object) -> None:
    assert message(tool_calls=[call(arguments)]).tool_calls[0].arguments == decoded


@pytest.mark.parametrize(
    "arguments",
    ["[1]", "5", '"a"', "{", '{"a": NaN}', "a", [], 5, False, "[" * 100_000, "9" * 5000],
    ids=lambda v: str(v)[:12],
)
def test_arguments_that_are_no_object_are_refused_by_their_place(arguments: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        message(tool_calls=[call(arguments)])
    assert caught.value.param == ARGUMENTS
    assert len(caught.value.message) < 300


def test_call_may_come_without_an_id_or_a_type() -> None:
    plain = message(tool_calls=[{"function": {"name": "f", "arguments": {}}, "id": None}])
    assert plain.tool_calls == (ToolCall("f", {}, None),)


def test_call_of_a_custom_tool_is_refused() -> None:
    with pytest.raises(Unsupported, match="custom") as caught:
        message(tool_calls=[{"id": "x", "type": "custom", "custom": {"name": "f", "input": "y"}}])
    assert caught.value.param == "messages[0].tool_calls[0]"


def test_legacy_call_is_a_call() -> None:
    plain = message(content=None, function_call={"name": "f", "arguments": '{"a": 1}'})
    assert plain.tool_calls == (ToolCall("f", {"a": 1}),)
    with pytest.raises(InvalidRequest) as caught:
        message(function_call={"name": "f", "arguments": "5"})
    assert caught.value.param == "messages[0].function_call.arguments"


@pytest.mark.parametrize("content", ['{"ok": true}', [{"type": "text", "text": '{"ok": true}'}]], ids=["text", "parts"])
def test_result_of_a_call_says_which_f6(content: object) -> None:
    plain = message(role="tool", content=content, tool_call_id="call_1", name="f")
    assert plain == ChatMessage("tool", content, "f", (), "call_1")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_earlier_thoughts_are_kept(field: str) -> None:
    assert message(content="x", **{field: "hm"}).reasoning == "hm"
    assert message(content="x", **{field: ""}).reasoning is None
    assert message(content="x", **{field: {"unknown": 1}}).reasoning is None


def test_refusal_is_text() -> None:
    assert message(content=[{"type": "refusal", "refusal": "No."}]).content == [{"type": "text", "text": "No."}]


def test_other_parts_go_on_as_they_are() -> None:
    """Whoever reads the parts refuses what the model cannot read."""
    content = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": ""}]
    assert message(role="user", content=content).content == [{"type": "image_url"}, {"type": "text", "text": ""}]


def test_earlier_audio_is_refused() -> None:
    with pytest.raises(Unsupported, match="audio"):
        message(audio={"id": "x"})


def test_million_mistakes_cost_no_more_than_one() -> None:
    with pytest.raises(InvalidRequest) as caught:
        message(tool_calls=[5] * 100_000)
    assert caught.value.param == "messages[0].tool_calls[0]"
