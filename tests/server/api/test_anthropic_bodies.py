"""What a body of Anthropic's API means: blocks, tools, thinking, formats; what is refused, what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.anthropic_bodies import CountBody, MessagesBody
from homeai.server.api.body import parse_body
from homeai.server.api.notes import MAX_NOTES
from homeai.server.api.openai_tools import MAX_TOOLS
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage, Tool, ToolCall, ToolChoice

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "default": None}}}
WEATHER = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch={};"


def body(**fields: object) -> MessagesBody:
    data = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]} | fields
    return parse_body(json.dumps(data).encode(), MessagesBody)


def chat(**fields: object) -> Chat:
    return body(**fields).chat([])


def messages(*given: dict[str, object]) -> list[ChatMessage]:
    return [*chat(messages=given).messages]


def user(*blocks: object) -> dict[str, object]:
    return {"role": "user", "content": blocks}


def assistant(*blocks: object) -> dict[str, object]:
    return {"role": "assistant", "content": blocks}


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


# ---- how to draw ---------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_sampler() -> None:
    ask = body().ask()
    assert ask.sampling == SamplingParams()
    assert (ask.max_tokens, ask.stop, ask.user) == (9, [], None)


def test_what_is_asked_for_is_handed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["END"], "metadata": {"user_id": "anna"}}
    ask = body(**fields).ask()
    assert ask.sampling == SamplingParams(temperature=0.5, top_p=0.25, top_k=7)
    assert (ask.stop, ask.user) == (["END"], "anna")


@pytest.mark.parametrize(
    ("model", "resident"), [("claude-opus-4", None), ("claude", None), (None, None), ("gemma", "gemma")]
)
def test_any_claude_is_the_resident_model(model: str | None, resident: str | None) -> None:
    assert body(model=model).resident_model == resident


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 1.1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user(5)]}, "messages[0].content[0]"),
        ({"messages": [assistant(TOOL_USE | {"input": "{}"})]}, "messages[0].content[0].input"),
        ({"system": [PICTURE]}, "system[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"output_config": {"effort": "little"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
        ({"messages": [user(text("a"), PICTURE)]}, "messages[0].content[1]"),
        ({"messages": [user({"type": "document", "source": {}})]}, "messages[0].content[0]"),
        (
            {"messages": [user({"type": "tool_result", "tool_use_id": "x", "content": [PICTURE]})]},
            "messages[0].content[0].content[0]",
        ),
        ({"messages": [user(TOOL_USE)]}, "messages[0].content[0]"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


def test_kind_of_content_that_is_not_read_is_named() -> None:
    with pytest.raises(Unsupported, match="'image'"):
        chat(messages=[user(PICTURE)])


# ---- messages ------------------------------------------------------------------------------------------


def test_text_is_taken_as_it_is() -> None:
    assert messages({"role": "user", "content": "a"}) == [ChatMessage("user", "a")]
    assert messages(user(text("a"), text("b"))) == [ChatMessage("user", [text("a"), text("b")])]
    assert messages({"role": "assistant", "content": []}) == [ChatMessage("assistant", None)]
    assert messages({"role": "user", "content": []}) == [ChatMessage("user", [])]


def test_answer_of_the_assistant_has_its_reasoning_and_its_calls() -> None:
    thinking = {"type": "thinking", "thinking": "Hm", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    (read,) = messages(assistant(thinking, redacted, text("So"), TOOL_USE))
    call = ToolCall("weather", {"city": "Bern"}, "toolu_1")
    assert read == ChatMessage("assistant", [text("So")], tool_calls=(call,), reasoning="Hm")


def test_result_says_which_call_it_answers() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    _, read, question = messages(assistant(TOOL_USE), user(result, text("So?")))
    assert read == ChatMessage("tool", [text("sunny")], name="weather", tool_call_id="toolu_1")
    assert question == ChatMessage("user", [text("So?")])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, [text("")]),
        ("x", [text("x")]),
        ([text("x"), text("y")], [text("x"), text("y")]),
        ([{"type": "tool_reference", "tool_name": "grep"}], [text("grep")]),
        ([], [text("")]),
    ],
)
@pytest.mark.parametrize("is_error", [None, False, True])
def test_result_may_be_text_or_blocks_or_an_error(content: object, parts: list[object], is_error: bool | None) -> None:
    result = {"type": "tool_result", "tool_use_id": "x", "content": content, "is_error": is_error}
    (read,) = messages(user(result))
    assert read.content == ([text("Error:"), *parts] if is_error else parts)


def test_what_only_anthropics_servers_could_have_said_is_left_out_with_a_note() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    notes: list[str] = []
    read = body(messages=[assistant(search, search, text("So"))]).chat(notes).messages
    assert read == [ChatMessage("assistant", [text("So")])]
    assert notes == ["content of type 'server_tool_use' was left out"]


# ---- the system prompt ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "parts"),
    [
        ("Be brief.", ["Be brief."]),
        ("", [""]),
        ([text("a"), text("b") | {"cache_control": {"type": "ephemeral"}}], ["a", "b"]),
        ([text(BILLING.format("1a2b3")), text("b")], ["b"]),
        ([text(BILLING.format("1a2b3") + "\nYou are"), text("b")], ["You are", "b"]),
        (BILLING.format("1a2b3") + "\n\nYou are", ["You are"]),
        ([text("a"), text(BILLING.format("x"))], ["a", BILLING.format("x")]),
    ],
)
def test_system_comes_first_and_without_the_billing_header(system: object, parts: list[str]) -> None:
    first = chat(system=system).messages[0]
    assert (first.role, first.content) == ("system", [text(part) for part in parts])


def test_checksum_in_the_billing_header_does_not_make_another_prompt() -> None:
    one, other = (chat(system=[text(BILLING.format(sum)), text("b")]).messages for sum in ("1a2b3", "4c5d6"))
    assert one == other


# ---- tools, thinking, formats --------------------------------------------------------------------------


def test_tools_of_the_client_are_declared_with_their_place() -> None:
    notes: list[str] = []
    search = {"type": "web_search_20250305", "name": "web_search"}
    tools = body(tools=[search, WEATHER, WEATHER | {"type": "custom", "name": "w2"}]).chat(notes).tools
    assert tools == (
        Tool("weather", "Tells it.", SCHEMA, path="tools[1].input_schema"),
        Tool("w2", "Tells it.", SCHEMA, path="tools[2].input_schema"),
    )
    assert notes == ["tools that only Anthropic defines were skipped: web_search"]


@pytest.mark.parametrize(
    ("choice", "expected", "is_parallel"),
    [
        (None, ToolChoice("auto"), True),
        ({"type": "auto"}, ToolChoice("auto"), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto"), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "none"}, ToolChoice("none"), True),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", "weather"), True),
    ],
)
def test_choice_of_tools_is_handed_on(choice: object, expected: ToolChoice, is_parallel: bool) -> None:
    read = chat(tools=[WEATHER], tool_choice=choice)
    assert (read.tool_choice, read.parallel_tool_calls) == (expected, is_parallel)


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, False),  # who does not ask for it gets none
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive", "display": None}, None),
    ],
)
def test_thinking_is_asked_for(thinking: object, thinks: bool | None) -> None:
    assert chat(thinking=thinking).thinks is thinks


def test_budget_for_thinking_is_said_to_have_no_effect() -> None:
    notes: list[str] = []
    body(thinking={"type": "enabled", "budget_tokens": 2048}).chat(notes)
    assert notes == ["thinking.budget_tokens has no effect"]


@pytest.mark.parametrize(
    ("effort", "told"), [(None, None), ("low", "low"), ("high", "high"), ("xhigh", "high"), ("max", "high")]
)
def test_effort_is_handed_on(effort: str | None, told: str | None) -> None:
    assert chat(output_config={"effort": effort}).reasoning_effort == told


@pytest.mark.parametrize("path", ["output_config.format", "output_format"])
def test_format_of_the_answer_has_two_names(path: str) -> None:
    format: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    fields: dict[str, object] = (
        {"output_format": format} if path == "output_format" else {"output_config": {"format": format}}
    )
    assert chat(**fields).answer_format == AnswerFormat(schema=SCHEMA, path=f"{path}.schema")


# ---- counting, and what nobody asked -------------------------------------------------------------------


def test_counting_needs_no_limit() -> None:
    read = parse_body(b'{"messages": [{"role": "user", "content": "a"}], "tools": []}', CountBody)
    assert read.chat([]).messages == [ChatMessage("user", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        {"service_tier": "auto", "container": None, "context_management": {"edits": []}, "betas": ["x"]},
        {"cache_control": {"type": "ephemeral"}, "speed": "fast", "inference_geo": "eu", "diagnostics": {}},
        {"stop_sequences": None, "temperature": None, "tools": None, "tool_choice": None, "thinking": None},
        {"metadata": {"user_id": None}, "output_config": {"format": None, "effort": None}, "system": None},
    ],
)
def test_what_has_no_effect_is_no_obstacle(fields: dict[str, object]) -> None:
    assert chat(**fields) == chat()


def test_first_of_many_mistakes_is_the_only_one_looked_at() -> None:
    """Else a body of a few megabytes holds the event loop for a minute."""
    for fields, where in [
        ({"messages": [5] * 50_000}, "messages[0]"),
        ({"messages": [user(*[5] * 50_000)]}, "messages[0].content[0]"),
        ({"tools": [5] * 50_000}, "tools[0]"),
        ({"stop_sequences": [5] * 50}, "stop_sequences[0]"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            body(**fields)
        assert where in caught.value.message
        assert getattr(caught.value.__context__, "error_count", lambda: 1)() == 1


@pytest.mark.parametrize("name", ["", 'get"x', "a" * 129, "a b"])
def test_names_of_tools_are_those_that_a_model_can_write(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tools=[WEATHER | {"name": name}])
    assert caught.value.param == "tools[0].name"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="tools declares 'weather' more than once") as caught:
        chat(tools=[WEATHER, WEATHER | {"description": "another"}])
    assert caught.value.param == "tools"


def test_there_are_not_more_tools_than_a_model_can_read() -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_TOOLS} items") as caught:
        chat(tools=[WEATHER | {"name": f"w{index}"} for index in range(MAX_TOOLS + 1)])
    assert caught.value.param == "tools"


def test_what_is_left_out_is_said_once_and_not_without_end() -> None:
    notes: list[str] = []
    body(messages=[assistant(*({"type": f"k{index % 5000}"} for index in range(9000)))]).chat(notes)
    assert notes[0] == "content of type 'k0' was left out"
    assert len(notes) == len(set(notes)) == MAX_NOTES
