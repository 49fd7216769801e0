"""Which functions may be called: `tools`, `functions`, every form of a choice between them. Case G10."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import parse_body
from homeai.server.api.openai_bodies import ChatBody
from homeai.server.conversation import Chat, Tool, ToolChoice

EMPTY = {"type": "object", "properties": {}}
A = {"type": "function", "function": {"name": "a", "description": "the first", "parameters": EMPTY, "strict": True}}
B = {"type": "function", "function": {"name": "b"}}
ONLY_B = {"type": "function", "function": {"name": "b"}}


def chat(**fields: object) -> Chat:
    messages = [{"role": "user", "content": "a"}]
    return parse_body(json.dumps({"messages": messages} | fields).encode(), ChatBody).chat()


def refusal(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    return caught.value


def test_tools_are_declared_with_where_they_stand() -> None:
    assert chat(tools=[A, B]).tools == (
        Tool("a", "the first", EMPTY, "tools[0]"),
        Tool("b", "", EMPTY, "tools[1]"),
    )


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ("any", ToolChoice("required")),
        (ONLY_B, ToolChoice("required", "b")),
        ({"type": "function", "name": "b"}, ToolChoice("required", "b")),
    ],
)
def test_choice_may_be_a_mode_or_one_of_the_tools_g10(choice: object, meant: ToolChoice) -> None:
    assert chat(tools=[A, B], tool_choice=choice).tool_choice == meant


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_the_allowed_tools_may_be_called(mode: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [ONLY_B]}}
    asked = chat(tools=[A, B], tool_choice=choice)
    assert ([tool.name for tool in asked.tools], asked.tool_choice.mode) == (["b"], mode)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "c"}},
        {"type": "function", "function": {}},
        {"type": "function"},
        {"type": "custom", "custom": {"name": "a"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "c"}]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "banana", "tools": [ONLY_B]}},
        {"type": "allowed_tools"},
        "banana",
        "a",
        5,
        [],
        {},
        True,
    ],
    ids=str,
)
def test_choice_of_nothing_that_is_declared_is_refused_g10(choice: object) -> None:
    assert refusal(tools=[A, B], tool_choice=choice).param == "tool_choice"


def test_refused_choice_names_both_sides() -> None:
    error = refusal(tools=[A, B], tool_choice={"type": "function", "function": {"name": "c"}})
    assert "'c'" in error.message
    assert "'a', 'b'" in error.message


@pytest.mark.parametrize("choice", ["required", ONLY_B])
def test_call_cannot_be_required_where_nothing_is_declared(choice: object) -> None:
    assert refusal(tool_choice=choice).param == "tool_choice"
    assert refusal(tools=[], tool_choice=choice).param == "tool_choice"


def test_nothing_declared_needs_no_choice() -> None:
    assert chat(tools=[], tool_choice="auto").tools == ()
    assert chat(tool_choice="none").tools == ()


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom", "custom": {"name": "a"}}, "tools[1]"),
        ({"type": "web_search"}, "tools[1]"),
        ({"type": "function"}, "tools[1].function"),
        ({"type": "function", "function": {}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": ""}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": 'a"b'}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "a\nb"}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "b\n"}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "a", "parameters": []}}, "tools[1].function.parameters"),
        ("a", "tools[1]"),
    ],
    ids=str,
)
def test_tool_that_cannot_be_called_is_refused_by_its_place(tool: object, param: str) -> None:
    assert refusal(tools=[A, tool]).param == param


def test_custom_tools_are_not_supported() -> None:
    with pytest.raises(Unsupported, match="custom"):
        chat(tools=[{"type": "custom", "custom": {"name": "a"}}])


@pytest.mark.parametrize("name", ["HassTurnOn", "get_weather", "mcp.server/tool-1", "a:b", "wetter_für_morgen"])
def test_tool_may_have_the_names_that_clients_give(name: str) -> None:
    assert chat(tools=[{"type": "function", "function": {"name": name}}]).tools[0].name == name


def test_null_is_absent_in_a_tool() -> None:
    tool = {"type": "function", "function": {"name": "a", "description": None, "parameters": None, "strict": None}}
    assert chat(tools=[tool]).tools == (Tool("a", path="tools[0]"),)


def test_functions_are_tools_of_which_one_is_called_at_a_time() -> None:
    asked = chat(functions=[{"name": "a", "parameters": EMPTY}], function_call={"name": "a"})
    assert (asked.tools, asked.tool_choice) == ((Tool("a", "", EMPTY, "functions[0]"),), ToolChoice("required", "a"))
    assert not asked.parallel_tool_calls
    assert chat(functions=[{"name": "a"}], function_call="none").tool_choice == ToolChoice("none")


def test_function_call_of_nothing_that_is_declared_is_refused() -> None:
    assert refusal(functions=[{"name": "a"}], function_call={"name": "b"}).param == "function_call"
    assert refusal(function_call={"name": "b"}).param == "function_call"


def test_tools_and_functions_exclude_each_other() -> None:
    assert refusal(tools=[A], functions=[{"name": "b"}]).param == "functions"


def test_calls_may_be_wanted_one_by_one() -> None:
    assert chat(tools=[A]).parallel_tool_calls
    assert not chat(tools=[A], parallel_tool_calls=False).parallel_tool_calls


@pytest.mark.parametrize(("kind", "declared"), [("tools", [A, A]), ("functions", [A["function"], A["function"]])])
def test_two_tools_of_one_name_are_refused(kind: str, declared: list[object]) -> None:
    error = refusal(**{kind: declared})
    assert (error.param, error.message) == (kind, f"{kind} declares 'a' more than once")
