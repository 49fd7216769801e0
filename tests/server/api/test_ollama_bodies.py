"""Bodies of Ollama's API: what they ask for, what they are told has no effect, what is a mistake."""

from __future__ import annotations

import json
import math
from typing import TypeVar

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import Body, parse_body
from homeai.server.api.ollama_bodies import ChatBody, GenerateBody, NamedBody
from homeai.server.conversation import AnswerFormat, ToolCall

B = TypeVar("B", bound=Body)

HELLO = {"role": "user", "content": "Hello"}
LIGHT = {"type": "function", "function": {"name": "light", "description": "Turns it on", "parameters": {}}}


def read(kind: type[B], /, **fields: object) -> B:
    return parse_body(json.dumps(fields).encode(), kind)


def chat(**fields: object) -> ChatBody:
    return read(ChatBody, messages=[HELLO], **fields)


def generate(**fields: object) -> GenerateBody:
    return read(GenerateBody, prompt="Hello", **fields)


# ---- how to draw ---------------------------------------------------------------------------------------


def test_options_say_how_to_draw() -> None:
    options = {
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0,
        "typical_p": 0.9,
        "seed": 7,
        "stop": ["a"],
        "num_predict": 3,
    }
    penalties = {"repeat_penalty": 1.1, "repeat_last_n": 8, "presence_penalty": 1, "frequency_penalty": -1}
    ask = chat(options=options | penalties).ask()
    assert (ask.max_tokens, ask.seed, ask.stop) == (3, 7, ["a"])
    sampling = ask.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0, 5, 0.5)
    assert (sampling.min_p, sampling.typical_p) == (0, 0.9)
    assert (sampling.repeat_penalty, sampling.repeat_last_n) == (1.1, 8)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)


@pytest.mark.parametrize("num_predict", [-1, -2, -2.0, None])
def test_c3_an_answer_without_a_limit_ends_with_the_context(num_predict: object) -> None:
    assert chat(options={"num_predict": num_predict}).ask().max_tokens is None


def test_number_of_tokens_may_be_zero() -> None:
    assert chat(options={"num_predict": 0}).ask().max_tokens == 0


def test_seed_of_minus_one_is_drawn() -> None:
    assert chat(options={"seed": -1}).ask().seed is None
    assert chat(options={"seed": -5}).ask().seed == 2**64 - 5


def test_stop_may_be_one_text() -> None:
    assert chat(options={"stop": "END"}).ask().stop == ["END"]


def test_null_is_absent_everywhere() -> None:
    names = ("temperature", "top_k", "top_p", "seed", "stop", "num_predict", "num_ctx", "typical_p")
    nulls = dict.fromkeys(("think", "format", "keep_alive", "stream", "tools", "options", "logprobs", "truncate"))
    body = chat(**nulls | {"options": dict.fromkeys(names)})
    assert body.ask() == read(ChatBody, messages=[HELLO]).ask()
    assert (body.notes, body.stream, body.answer_format, body.thinks) == ([], True, None, None)


def test_repeat_penalty_of_zero_is_off() -> None:
    assert chat(options={"repeat_penalty": 0}).ask().sampling.repeat_penalty == 1


def test_log_probabilities_are_asked_for() -> None:
    assert chat(logprobs=True, top_logprobs=3).ask().sampling.logprobs == 3
    assert chat(logprobs=True).ask().sampling.logprobs == 0
    assert chat(top_logprobs=3).ask().sampling.logprobs is None


# ---- what has no effect --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option", ["num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "mirostat", "num_keep"]
)
def test_b7_option_that_concerns_loading_has_no_effect_and_that_is_said(option: str) -> None:
    (note,) = chat(options={option: 0}).notes
    assert note.startswith(f"{option} has no effect: ")


def test_h9_wish_to_keep_the_model_is_read() -> None:
    body = chat(keep_alive="-1s")
    assert body.ask().keep_alive_s == math.inf
    assert body.notes == []


def test_prompt_is_never_cut_whatever_is_asked_for() -> None:
    assert [note.partition(":")[0] for note in chat(truncate=True, shift=True).notes] == [
        "truncate has no effect",
        "shift has no effect",
    ]


def test_context_of_an_earlier_generate_is_said_to_have_no_effect() -> None:
    (note,) = generate(context=[1, 2]).notes
    assert note.startswith("context has no effect: ")


def test_notes_fit_a_header() -> None:
    without_effect = {**ChatBody.without_effect, **GenerateBody.without_effect}
    for text in (*without_effect.values(), *ChatBody.model_fields["options"].default.without_effect.values()):
        assert text.isascii()


def test_unknown_fields_and_options_are_ignored() -> None:
    assert chat(options={"frobnicate": 3}, shiny=True).notes == []


# ---- format, thinking ----------------------------------------------------------------------------------


def test_format_is_any_object_or_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert chat(format="json").chat().answer_format == AnswerFormat({}, path="format")
    assert generate(format=schema).chat().answer_format == AnswerFormat(schema, path="format")
    assert chat(format="").chat().answer_format is None


@pytest.mark.parametrize("value", ["xml", "JSON", True, 1, [], ["json"]])
def test_g16_format_that_cannot_be_followed_is_a_mistake(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^format: ") as raised:
        chat(format=value)
    assert raised.value.param == "format"


@pytest.mark.parametrize(
    ("think", "thinks", "effort"),
    [
        (True, True, None),
        (False, False, None),
        ("low", True, "low"),
        ("medium", True, "medium"),
        ("high", True, "high"),
        ("max", True, "high"),
    ],
)
def test_think_says_whether_and_how_much(think: object, thinks: bool, effort: str | None) -> None:
    for asked in (chat(think=think).chat(), generate(think=think).chat()):
        assert (asked.thinks, asked.reasoning_effort) == (thinks, effort)


@pytest.mark.parametrize("think", ["true", "maximum", "", 1, 0, {}, []])
def test_any_other_think_is_a_mistake(think: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^think: "):
        chat(think=think)


# ---- messages and tools --------------------------------------------------------------------------------


def test_messages_are_read_with_all_that_belongs_to_them() -> None:
    call = {"id": "c1", "function": {"index": 0, "name": "light", "arguments": {"on": True}}}
    messages = [
        HELLO,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_name": "light", "tool_call_id": "c1"},
    ]
    _user, assistant, tool = read(ChatBody, messages=messages).chat().messages
    assert assistant.tool_calls == (ToolCall("light", {"on": True}, "c1"),)
    assert assistant.reasoning == "Hm."
    assert (tool.name, tool.tool_call_id) == ("light", "c1")


@pytest.mark.parametrize("arguments", [{"on": True}, '{"on": true}'])
def test_g12_arguments_may_be_an_object_or_its_text(arguments: object) -> None:
    calls = [{"function": {"name": "light", "arguments": arguments}}]
    (message,) = read(ChatBody, messages=[{"role": "assistant", "tool_calls": calls}]).chat().messages
    assert message.tool_calls == (ToolCall("light", {"on": True}),)


@pytest.mark.parametrize("arguments", ["{", "[]", "3", [1], 3, True])
def test_arguments_that_are_no_object_are_a_mistake_that_names_the_place(arguments: object) -> None:
    calls = [{"function": {"name": "light", "arguments": arguments}}]
    with pytest.raises(InvalidRequest) as raised:
        read(ChatBody, messages=[HELLO, {"role": "assistant", "tool_calls": calls}]).chat()
    assert raised.value.param == "messages[1].tool_calls[0].function.arguments"


def test_images_are_refused_with_their_place() -> None:
    message = {"role": "user", "content": "What is this?", "images": ["aGk="]}
    with pytest.raises(Unsupported) as raised:
        read(ChatBody, messages=[HELLO, message]).chat()
    assert raised.value.param == "messages[1].images"
    assert read(ChatBody, messages=[{**HELLO, "images": []}]).chat().messages[0].content == "Hello"
    with pytest.raises(InvalidRequest, match="images"):
        generate(images=["aGk="])


def test_tools_are_declared() -> None:
    (tool,) = chat(tools=[LIGHT]).chat().tools
    assert (tool.name, tool.description, tool.parameters, tool.path) == ("light", "Turns it on", {}, "tools[0]")


def test_tool_choice_is_taken_as_in_openais_api() -> None:
    assert chat(tools=[LIGHT], tool_choice="none").chat().tool_choice.mode == "none"
    named = chat(tools=[LIGHT], tool_choice={"type": "function", "function": {"name": "light"}})
    assert named.chat().tool_choice.name == "light"
    with pytest.raises(InvalidRequest, match="tool_choice"):
        chat(tools=[LIGHT], tool_choice={"type": "function", "function": {"name": "lamp"}}).chat()


def test_chat_may_come_without_messages() -> None:
    assert read(ChatBody, model="m").messages == []
    assert read(ChatBody, model="m", messages=None).messages == []


# ---- generate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "load"),
        ({"prompt": ""}, "load"),
        ({"prompt": "a"}, "chat"),
        ({"prompt": "a", "suffix": ""}, "chat"),
        ({"prompt": "a", "system": "s", "template": ""}, "chat"),
        ({"prompt": "a", "raw": True}, "raw"),
        ({"prompt": "a", "suffix": "b"}, "gap"),
        ({"prompt": "", "suffix": "b"}, "gap"),
        ({"prompt": "a", "suffix": "b", "raw": True}, "gap"),
    ],
)
def test_fields_say_what_kind_of_text_is_wanted(fields: dict[str, object], kind: str) -> None:
    assert read(GenerateBody, **fields).kind == kind


@pytest.mark.parametrize("fields", [{"raw": True}, {"suffix": "b"}])
def test_system_prompt_needs_a_template(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        _ = generate(system="Be brief.", **fields).kind
    assert raised.value.param == "system"


def test_generate_is_a_conversation_of_one_question() -> None:
    assert [(m.role, m.content) for m in generate(system="Be brief.").chat().messages] == [
        ("system", "Be brief."),
        ("user", "Hello"),
    ]
    assert len(generate().chat().messages) == 1


def test_template_of_a_client_is_refused() -> None:
    with pytest.raises(Unsupported) as raised:
        generate(template="{{ .Prompt }}")
    assert raised.value.param == "template"


# ---- loading, names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", 0.0])
def test_body_without_a_question_may_ask_for_the_models_end(keep_alive: object) -> None:
    assert read(ChatBody, keep_alive=keep_alive).is_unload
    assert not read(ChatBody, keep_alive=5).is_unload
    assert not read(ChatBody).is_unload


def test_model_is_named_by_either_field() -> None:
    assert read(NamedBody, model="a").wanted == "a"
    assert read(NamedBody, name="a").wanted == "a"
    with pytest.raises(InvalidRequest, match="model is required"):
        _ = read(NamedBody, model="").wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": []}, "options"),
        ({"options": {"temperature": 5}}, "options.temperature"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"top_p": -0.5}}, "options.top_p"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"stop": [1]}}, "options.stop[0]"),
        ({"options": {"typical_p": 5}}, "options.typical_p"),
        ({"stream": "yes"}, "stream"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [{"content": "Hello"}]}, "messages[0].role"),
        ({"messages": "Hello"}, "messages"),
    ],
)
def test_mistake_names_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(ChatBody, **{"messages": [HELLO], **fields}).chat()
    assert raised.value.param == param


def test_two_tools_of_one_name_are_refused() -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    read = parse_body(json.dumps({"messages": [], "tools": [tool, tool]}).encode(), ChatBody)
    with pytest.raises(InvalidRequest, match="tools declares 'weather' more than once"):
        read.chat()
