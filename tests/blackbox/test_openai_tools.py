"""Calls of tools and answers of a given form, over /v1. Cases F5, G1, G2, G10, G13, G15.

The default model is no assistant: what it calls, and that it calls at all, is forced.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.blackbox.asking import BOTH_WAYS, assert_serves, error_of, events, post
from tests.daemon import Daemon

both_ways = pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])

LIGHT = {
    "type": "object",
    "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
    "required": ["room", "on"],
    "additionalProperties": False,
}
BLIND = LIGHT | {"properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"enum": [3]}}}
NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "function": {"name": "set_light", "description": "Switch a light.", "parameters": LIGHT}},
    {"type": "function", "function": {"name": "set_blind", "description": "Move a blind.", "parameters": BLIND}},
]
ASKED = {"messages": [{"role": "user", "content": "Light in the kitchen, please."}], "temperature": 0, "max_tokens": 96}


def named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


class Gathered:
    """A message as a client puts it together that reads one call of each chunk."""

    def __init__(self, response: Any, *, stream: bool) -> None:
        self.content = ""
        self.calls: list[dict[str, Any]] = []
        self.finish_reason = None
        if stream:
            for chunk in events(response):
                for choice in chunk["choices"]:
                    self._add(choice)
        else:
            assert response.status_code == 200, response.text
            (choice,) = response.json()["choices"]
            self.content = choice["message"]["content"] or ""
            self.finish_reason = choice["finish_reason"]
            self.calls = choice["message"].get("tool_calls", [])

    def _add(self, choice: Any) -> None:
        delta = choice["delta"]
        if choice["finish_reason"]:
            assert delta == {}
            self.finish_reason = choice["finish_reason"]
        self.content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            assert len(delta["tool_calls"]) == 1
            if call["index"] == len(self.calls):
                assert call["function"]["arguments"] == ""
                self.calls.append(
                    {"id": call["id"], "type": call["type"], "function": {"name": call["function"]["name"]}}
                )
                self.calls[-1]["function"]["arguments"] = ""
            assert call["index"] == len(self.calls) - 1
            self.calls[-1]["function"]["arguments"] += call["function"]["arguments"]

    @property
    def names(self) -> list[str]:
        return [call["function"]["name"] for call in self.calls]

    @property
    def arguments(self) -> list[Any]:
        return [json.loads(call["function"]["arguments"]) for call in self.calls]


def gather(daemon: Daemon, *, stream: bool, **fields: object) -> Gathered:
    return Gathered(post(daemon, ASKED | fields | {"stream": stream}), stream=stream)


# ---- calls -----------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(("name", "values"), [("set_light", (True, False)), ("set_blind", (3,))])
def test_named_tool_is_called_and_no_other_g10(
    daemon: Daemon, stream: bool, name: str, values: tuple[object, ...]
) -> None:
    told = gather(daemon, stream=stream, tools=TOOLS, tool_choice=named(name), parallel_tool_calls=False)
    assert (told.names, told.content, told.finish_reason) == ([name], "", "tool_calls")
    (arguments,) = told.arguments
    assert arguments.keys() == {"room", "on"}
    assert arguments["room"] in ("kitchen", "hall")
    assert arguments["on"] in values
    assert told.calls[0]["id"]
    assert told.calls[0]["type"] == "function"


@both_ways
@pytest.mark.parametrize("choice", ["required", "any"])
def test_required_means_a_call_of_some_tool(daemon: Daemon, stream: bool, choice: str) -> None:
    told = gather(daemon, stream=stream, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert told.finish_reason == "tool_calls"
    assert len(told.calls) == 1
    assert told.names[0] in ("set_light", "set_blind")


@both_ways
def test_only_an_allowed_tool_is_called(daemon: Daemon, stream: bool) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("set_blind")]}}
    told = gather(daemon, stream=stream, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert told.names == ["set_blind"]


@both_ways
def test_tool_without_parameters_is_called_with_an_empty_object_g2(daemon: Daemon, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "ping", "parameters": NOTHING | {"additionalProperties": False}}}
    told = gather(daemon, stream=stream, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert (told.names, told.arguments) == (["ping"], [{}])


def test_stream_of_a_call_is_the_whole_one(daemon: Daemon) -> None:
    whole, streamed = (
        gather(daemon, stream=stream, tools=TOOLS, tool_choice=named("set_light"), parallel_tool_calls=False)
        for stream in BOTH_WAYS
    )
    assert (streamed.names, streamed.arguments) == (whole.names, whole.arguments)


def test_several_calls_are_numbered_in_order_g13(daemon: Daemon) -> None:
    """As many as the model likes to make; `Gathered` holds their order."""
    told = gather(daemon, stream=True, tools=TOOLS, tool_choice="required", max_tokens=200)
    assert len(told.calls) >= 1
    assert told.finish_reason in ("tool_calls", "length")
    assert len({call["id"] for call in told.calls}) == len(told.calls)


@both_ways
@pytest.mark.parametrize("max_tokens", [1, 3, 8])
def test_call_that_is_cut_is_no_error_and_no_call(daemon: Daemon, stream: bool, max_tokens: int) -> None:
    told = gather(daemon, stream=stream, tools=TOOLS, tool_choice=named("set_light"), max_tokens=max_tokens)
    assert told.finish_reason == "length"
    assert stream or not told.calls


@both_ways
@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_tools_do_not_have_to_be_called(daemon: Daemon, stream: bool, choice: str | None) -> None:
    told = gather(daemon, stream=stream, tools=TOOLS, tool_choice=choice, max_tokens=8)
    assert told.finish_reason in ("stop", "length", "tool_calls")
    assert choice != "none" or not told.calls


@both_ways
def test_every_choice_has_its_call(daemon: Daemon, stream: bool) -> None:
    body = ASKED | {"tools": TOOLS, "tool_choice": named("set_light"), "parallel_tool_calls": False, "n": 3}
    response = post(daemon, body | {"stream": stream})
    chunks = events(response) if stream else [response.json()]
    reasons = {c["index"]: c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    assert reasons == dict.fromkeys(range(3), "tool_calls")


@both_ways
def test_client_that_knows_functions_only_is_served(daemon: Daemon, stream: bool) -> None:
    functions = [tool["function"] for tool in TOOLS]
    body = ASKED | {"functions": functions, "function_call": {"name": "set_light"}, "stream": stream}
    response = post(daemon, body)
    if stream:
        choices = [choice for chunk in events(response) for choice in chunk["choices"]]
        parts = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
        name, arguments = parts[0]["name"], "".join(part["arguments"] for part in parts)
        reason = choices[-1]["finish_reason"]
    else:
        (choice,) = response.json()["choices"]
        name, arguments = choice["message"]["function_call"].values()
        reason = choice["finish_reason"]
    assert (name, reason) == ("set_light", "function_call")
    assert json.loads(arguments).keys() == {"room", "on"}


@both_ways
def test_log_probabilities_of_a_call_are_told(daemon: Daemon, stream: bool) -> None:
    body = ASKED | {"tools": TOOLS, "tool_choice": named("set_light"), "logprobs": True, "stream": stream}
    response = post(daemon, body | {"parallel_tool_calls": False})
    chunks = events(response) if stream else [response.json()]
    blocks = [c["logprobs"]["content"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    text = b"".join(bytes(entry["bytes"]) for block in blocks for entry in block)
    assert b"set_light" in text
    assert b"kitchen" in text or b"hall" in text


# ---- calls that were made ----------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=str)
@pytest.mark.parametrize("arguments", ['{"room": "kitchen"}', "{}", "", {"room": "kitchen"}], ids=str)
def test_conversation_with_calls_goes_on_f5_g12(
    daemon: Daemon, stream: bool, content: dict[str, object], arguments: object
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "set_light", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Light in the kitchen, please."},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"ok": true}'},
    ]
    assert gather(daemon, stream=stream, messages=messages, tools=TOOLS, max_tokens=4).finish_reason is not None


def test_arguments_of_a_call_that_are_no_object_are_refused(daemon: Daemon) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "set_light", "arguments": "[1]"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    error = error_of(post(daemon, ASKED | {"messages": messages}))
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


# ---- refusals ----------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": named("set_lamp")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "banana"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": named("set_light")}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"tools": TOOLS, "functions": [{"name": "f"}]}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= [a-z]"}, "grammar"),
    ],
)
def test_call_that_cannot_be_asked_for_is_refused(
    daemon: Daemon, stream: bool, fields: dict[str, object], param: str
) -> None:
    assert error_of(post(daemon, ASKED | fields | {"stream": stream}))["param"] == param
    assert_serves(daemon)


# ---- answers of a form ---------------------------------------------------------------------------------------

FORMS = {
    "response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": LIGHT}}},
    "json_object with a schema": {"response_format": {"type": "json_object", "schema": LIGHT}},
    "json_schema": {"json_schema": LIGHT},
}


@both_ways
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_answer_fits_its_schema_and_ends_with_it_g15(daemon: Daemon, stream: bool, form: dict[str, object]) -> None:
    told = gather(daemon, stream=stream, **form)
    assert told.finish_reason == "stop"
    answer = json.loads(told.content)
    assert answer.keys() == {"room", "on"}
    assert answer["room"] in ("kitchen", "hall")


@both_ways
def test_answer_is_some_object(daemon: Daemon, stream: bool) -> None:
    told = gather(daemon, stream=stream, response_format={"type": "json_object"}, max_tokens=400, seed=1)
    assert told.content.startswith("{")
    if told.finish_reason == "stop":
        assert isinstance(json.loads(told.content), dict)


@both_ways
def test_answer_follows_a_grammar(daemon: Daemon, stream: bool) -> None:
    told = gather(daemon, stream=stream, grammar='root ::= "yes" | "no"')
    assert told.content in ("yes", "no")


@pytest.mark.parametrize("form", [{"json_schema": LIGHT}, {"grammar": 'root ::= "yes" | "no"'}], ids=["schema", "gbnf"])
def test_completion_has_the_form_too(daemon: Daemon, form: dict[str, object]) -> None:
    (choice,) = post(daemon, {"prompt": "Answer:", "max_tokens": 64, "temperature": 0} | form).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] in ("yes", "no") or json.loads(choice["text"]).keys() == {"room", "on"}


@both_ways
def test_form_that_cannot_be_kept_is_refused_g1(daemon: Daemon, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^hello there indeed\!$"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = error_of(post(daemon, ASKED | {"response_format": form, "stream": stream}))
    assert "pattern" in error["message"]
