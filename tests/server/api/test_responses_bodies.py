"""What a body of the Responses API means: items, tools, formats; what is refused, and what is left out with a note."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest
from homeai.request import SamplingParams
from homeai.server.api.body import parse_body
from homeai.server.api.responses_bodies import InputBody, ResponsesBody
from homeai.server.api.responses_tools import TEXT_SCHEMA, Declared, Toolbox
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage, Tool, ToolCall, ToolChoice

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA, "strict": False}
PATCH = {"type": "custom", "name": "patch", "description": "Edits."}
HOUSE = {"type": "namespace", "name": "house", "tools": [WEATHER | {"name": "light"}, PATCH]}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
TOOL_CALL = ToolCall("weather", {"city": "Bern"}, "c1")


def body(**fields: object) -> ResponsesBody:
    return parse_body(json.dumps({"model": "default", "input": "a"} | fields).encode(), ResponsesBody)


def chat(**fields: object) -> Chat:
    read = body(**fields)
    return read.chat(read.toolbox([]), [])


def messages(*items: object) -> list[ChatMessage]:
    return [*chat(input=items).messages]


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


# ---- how to draw ---------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_sampler() -> None:
    ask = body().ask()
    assert ask.sampling == SamplingParams()
    assert (ask.max_tokens, ask.seed, ask.user, ask.model) == (None, None, None, "default")


def test_what_is_asked_for_is_handed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "max_output_tokens": 20, "user": "anna", "seed": 3, "ignore_eos": True}
    ask = body(**fields).ask()
    assert ask.sampling == SamplingParams(temperature=0.5, top_p=0.25, ignore_eos=True)
    assert (ask.max_tokens, ask.user, ask.seed) == (20, "anna", 3)


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 2}, 2),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["reasoning.encrypted_content"]}, None),
    ],
)
def test_log_probabilities_are_asked_for(fields: dict[str, object], num_logprobs: int | None) -> None:
    assert body(**fields).ask().sampling.logprobs == num_logprobs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0]"),
        ({"input": [CALL | {"arguments": "{"}]}, "input[0].arguments"),
        ({"input": [CALL | {"arguments": "[]"}]}, "input[0].arguments"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [OUTPUT | {"output": [{"type": "input_image"}]}]}, "input[0].output[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "x"}}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"truncation": "some"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"reasoning": {"effort": "little"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [HOUSE | {"tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "some", "tools": []}}, "tool_choice"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


# ---- items ---------------------------------------------------------------------------------------------


def test_text_is_a_message_of_the_user() -> None:
    assert chat(input="a", instructions="b").messages == [ChatMessage("system", "b"), ChatMessage("user", "a")]


def test_message_may_leave_out_its_type_and_be_made_of_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages({"role": "user", "content": "a"}) == messages({"type": "message", "role": "user", "content": "a"})
    assert messages({"role": "user", "content": parts}) == [ChatMessage("user", [text("a"), text("b")])]
    said = {"type": "output_text", "text": "So", "annotations": [], "logprobs": []}
    assert messages({"id": "msg_1", "role": "assistant", "status": "completed", "content": [said]}) == [
        ChatMessage("assistant", [text("So")])
    ]


def test_call_and_its_output_name_each_other() -> None:
    assert messages(CALL, OUTPUT) == [
        ChatMessage("assistant", tool_calls=(TOOL_CALL,)),
        ChatMessage("tool", "sunny", name="weather", tool_call_id="c1"),
    ]


def test_output_may_be_made_of_parts() -> None:
    (read,) = messages(OUTPUT | {"output": [{"type": "input_text", "text": "sunny"}]})
    assert read == ChatMessage("tool", [text("sunny")], tool_call_id="c1")


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]}
SAID = {"type": "message", "role": "assistant", "content": "So"}


@pytest.mark.parametrize("items", [[THOUGHT, SAID, CALL], [SAID, CALL, THOUGHT], [CALL, THOUGHT, SAID]])
def test_turn_of_the_assistant_is_one_message_in_whatever_order_it_comes(items: list[object]) -> None:
    assert messages(*items) == [ChatMessage("assistant", "So", tool_calls=(TOOL_CALL,), reasoning="Hm")]


def test_two_calls_are_of_one_turn_and_two_texts_are_not() -> None:
    second = CALL | {"call_id": "c2"}
    (read,) = messages(CALL, second)
    assert [call.call_id for call in read.tool_calls] == ["c1", "c2"]
    assert [message.content for message in messages(SAID, SAID)] == ["So", "So"]


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"content": [{"type": "reasoning_text", "text": "Really"}]}, "Really"),
        ({"content": None}, "Hm"),
        ({"content": [], "summary": []}, None),
        ({"summary": [], "encrypted_content": "x"}, None),
    ],
)
def test_thoughts_are_taken_before_their_summary(fields: dict[str, object], reasoning: str | None) -> None:
    (read,) = messages(THOUGHT | fields, SAID)
    assert read.reasoning == reasoning


def test_custom_call_is_one_with_a_single_text() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** x"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    assert messages(call, output) == [
        ChatMessage("assistant", tool_calls=(ToolCall("patch", {"input": "*** x"}, "c1"),)),
        ChatMessage("tool", "done", name="patch", tool_call_id="c1"),
    ]


def test_call_in_a_namespace_has_its_full_name() -> None:
    (read,) = messages(CALL | {"namespace": "house"})
    assert read.tool_calls[0].name == "house__weather"


def test_what_other_servers_did_is_left_out_with_a_note() -> None:
    notes: list[str] = []
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    read = body(input=[search, search, {"role": "user", "content": "a"}])
    assert read.chat(read.toolbox(notes), notes).messages == [ChatMessage("user", "a")]
    assert notes == ["input items of type 'web_search_call' were left out"]


# ---- tools ---------------------------------------------------------------------------------------------


def box_of(*tools: object, choice: object = None, notes: list[str] | None = None) -> Toolbox:
    return body(tools=tools, tool_choice=choice).toolbox([] if notes is None else notes)


def test_functions_are_declared_with_their_place() -> None:
    tool = Tool("weather", "Tells it.", SCHEMA, path="tools[0].parameters")
    assert box_of(WEATHER).declared == (Declared(tool, "function", "weather"),)


def test_function_without_parameters_takes_an_empty_object() -> None:
    (tool,) = box_of({"type": "function", "name": "f", "parameters": None}).tools
    assert tool.parameters == {"type": "object", "properties": {}}


def test_custom_tool_is_a_function_of_a_text_and_is_told_its_grammar() -> None:
    format = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    (declared,) = box_of(PATCH | {"format": format}).declared
    assert (declared.kind, declared.name, declared.tool.parameters) == ("custom", "patch", TEXT_SCHEMA)
    assert declared.tool.description == "Edits.\n\nThe text must follow this lark grammar:\nstart: X"


def test_namespace_is_the_beginning_of_names() -> None:
    box = box_of(HOUSE, HOUSE | {"name": "mcp__x__"})
    assert [tool.name for tool in box.tools] == ["house__light", "house__patch", "mcp__x__light", "mcp__x__patch"]
    assert box.tools[0].path == "tools[0].tools[0].parameters"
    found = box.find("house__patch")
    assert (found.kind, found.name, found.namespace) == ("custom", "patch", "house")


def test_what_only_others_can_run_is_skipped_with_a_note() -> None:
    notes: list[str] = []
    box = box_of({"type": "web_search"}, {"type": "local_shell"}, {"type": "web_search"}, WEATHER, notes=notes)
    assert [tool.path for tool in box.tools] == ["tools[3].parameters"]
    assert notes == ["tools of type 'web_search' were skipped", "tools of type 'local_shell' were skipped"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "weather"}, ToolChoice("required", "weather")),
        ({"type": "custom", "name": "patch"}, ToolChoice("required", "patch")),
    ],
)
def test_choice_of_tools_is_handed_on(choice: object, expected: ToolChoice) -> None:
    assert box_of(WEATHER, PATCH, choice=choice).choice == expected


def test_only_the_allowed_tools_are_told_to_the_model() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    box = box_of(WEATHER, PATCH, choice=choice)
    assert ([tool.name for tool in box.tools], box.choice) == (["weather"], ToolChoice("required"))


# ---- reasoning, formats, and what nobody asked ---------------------------------------------------------


@pytest.mark.parametrize(
    ("reasoning", "thinks", "effort"),
    [
        (None, None, None),
        ({"effort": None, "summary": "auto"}, None, None),
        ({"effort": "none"}, False, None),
        ({"effort": "minimal"}, True, "low"),
        ({"effort": "xhigh"}, True, "high"),
    ],
)
def test_reasoning_is_asked_for(reasoning: object, thinks: bool | None, effort: str | None) -> None:
    read = chat(reasoning=reasoning)
    assert (read.thinks, read.reasoning_effort) == (thinks, effort)


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, AnswerFormat({}, path="text.format")),
        (
            {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA},
            AnswerFormat(SCHEMA, path="text.format.schema"),
        ),
    ],
)
def test_format_of_the_text_is_handed_on(format: object, expected: AnswerFormat | None) -> None:
    assert chat(text={"format": format}).answer_format == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "metadata": None, "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "x"},
        {"include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": False}},
        {"previous_response_id": None, "conversation": None, "background": False, "prompt": None},
        {"tools": None, "tool_choice": None, "text": {"verbosity": "low", "format": None}, "reasoning": None},
        {"max_output_tokens": None, "temperature": None, "top_p": None, "user": None, "instructions": None},
    ],
)
def test_what_has_no_effect_is_no_obstacle(fields: dict[str, object]) -> None:
    assert chat(**fields) == chat()


def test_truncation_is_said_to_have_no_effect() -> None:
    notes: list[str] = []
    read = body(truncation="auto")
    read.chat(read.toolbox(notes), notes)
    assert notes == ["truncation has no effect: nothing of a prompt is dropped"]


def test_counting_takes_the_same_input() -> None:
    read = parse_body(b'{"input": "a", "instructions": "b"}', InputBody)
    assert len(read.chat(read.toolbox([]), []).messages) == 2


def test_first_of_many_mistakes_is_the_only_one_looked_at() -> None:
    """Else a body of a few megabytes holds the event loop for a minute."""
    for fields, where in [
        ({"input": [5] * 50_000}, "input[0]"),
        ({"input": [{"role": "user", "content": [5] * 50_000}]}, "input[0].content[0]"),
        ({"tools": [5] * 1000}, "tools[0]"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            body(**fields)
        assert where in caught.value.message
        assert getattr(caught.value.__context__, "error_count", lambda: 1)() == 1


# ---- tools that cannot be told apart, or are not there --------------------------------------------------


def function(name: str) -> dict[str, object]:
    return {"type": "function", "name": name}


def test_two_tools_of_one_name_are_refused() -> None:
    namespace = {"type": "namespace", "name": "home", "tools": [function("light")]}
    for tools in ([function("a"), function("a")], [function("home__light"), namespace]):
        with pytest.raises(InvalidRequest, match="more than once") as caught:
            chat(tools=tools)
        assert caught.value.param == "tools"


@pytest.mark.parametrize("allowed", [function("b"), {"type": "function"}, "a", None])
def test_choice_that_allows_what_is_not_declared_is_refused(allowed: object) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [function("a"), allowed]}
    with pytest.raises(InvalidRequest) as caught:
        chat(tools=[function("a")], tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_choice_may_allow_what_is_skipped() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [function("a"), {"type": "web_search"}]}
    made = chat(tools=[function("a"), function("b"), {"type": "web_search"}], tool_choice=choice)
    assert [tool.name for tool in made.tools] == ["a"]
