"""From a chat to the grammar of its answer, in every family's way of writing."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import Grammar
from homeai.server.conversation import AnswerFormat, Chat, Tool, ToolChoice
from homeai.server.families import known
from homeai.server.families.syntax import CallSyntax, ReplyFormat
from homeai.server.grammars import MAX_CALLS, grammar_for, grammar_of_answer
from tests.server.families.reading import read
from tests.server.writing import accepts, matcher_of, written

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["c", "f"]}},
        "required": ["city"],
    },
    path="tools[0]",
)
LAMP = Tool(
    "get",  # the beginning of the other's name
    parameters={
        "type": "object",
        "properties": {"room": {"$ref": "#/$defs/room"}, "scenes": {"type": "array", "items": {"type": "string"}}},
        "required": ["room"],
        "$defs": {"room": {"enum": ["küche", "bad"]}},
    },
    path="tools[1]",
)
NOW = Tool("now", path="tools[2]")
TOOLS = (WEATHER, LAMP, NOW)
ANSWER = AnswerFormat({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
THINKER = replace(known.HERMES, reasoning=("<think>", "</think>"))
FAMILIES = [family for family in vars(known).values() if isinstance(family, ReplyFormat)]


def grammar(
    format: ReplyFormat = known.HERMES, *, begun: bool = False, ids: dict[str, int] | None = None, **chat: Any
) -> Grammar:
    found = grammar_for(
        Chat(messages=[], **chat), format, begins_in_reasoning=begun, marker_id=(ids or {}).get, notes=[]
    )
    assert found is not None
    return found


def call(syntax: CallSyntax, name: str, arguments: dict[str, Any]) -> str:
    return syntax.before_name + name + syntax.before_arguments + written_as(syntax, arguments) + syntax.after_arguments


def calls(syntax: CallSyntax, *named: tuple[str, dict[str, Any]]) -> str:
    return syntax.begin + syntax.separator.join(call(syntax, *each) for each in named) + syntax.end


def written_as(syntax: CallSyntax, arguments: dict[str, Any]) -> str:
    if syntax.arguments == "json":
        return json.dumps(arguments, ensure_ascii=False)
    if syntax.arguments == "xml":
        return "".join(
            f"{syntax.before_key}{key}{syntax.before_value}"
            f"{value if isinstance(value, str) else json.dumps(value)}{syntax.after_value}"
            for key, value in arguments.items()
        )
    return braces(syntax, arguments)


def braces(syntax: CallSyntax, value: Any) -> str:
    if isinstance(value, str):
        return f"{syntax.quote}{value}{syntax.quote}"
    if isinstance(value, list):
        return f"[{','.join(braces(syntax, each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{braces(syntax, each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


# ---- who gets one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [{}, {"tools": TOOLS, "tool_choice": ToolChoice("none")}])
def test_who_asks_for_nothing_gets_no_grammar(chat: dict[str, Any]) -> None:
    assert (
        grammar_for(Chat(messages=[], **chat), known.HERMES, begins_in_reasoning=False, marker_id=str.find, notes=[])
        is None
    )  # type: ignore[arg-type]


def test_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    """G10"""
    with pytest.raises(InvalidRequest, match=r"no tool 'b'.*'get_weather', 'get', 'now'") as info:
        grammar(tools=TOOLS, tool_choice=ToolChoice("required", "b"))
    assert info.value.param == "tool_choice"
    with pytest.raises(InvalidRequest, match="no tools"):
        grammar(tool_choice=ToolChoice("required"))


# ---- calls, family by family ------------------------------------------------------------------------

GOOD = [
    [("get_weather", {"city": 'Rome <1> "x" \''})],
    [("get_weather", {"city": "", "days": 2, "unit": "c"})],
    [("get", {"room": "küche", "scenes": ["a", "b c"]})],
    [("now", {})],
]
BAD = [
    [("get_weather", {"days": 2})],
    [("get_weather", {"city": "x", "unit": "k"})],
    [("get_weather", {"city": "x", "days": "soon"})],
    [("get", {"city": "x"})],
    [("get", {"room": "garten"})],
    [("forecast", {"city": "x"})],
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_calls_are_forced_as_the_family_writes_them(family: ReplyFormat) -> None:
    for choice in ("auto", "required"):
        source = grammar(family, tools=TOOLS, tool_choice=ToolChoice(choice)).source
        for good in GOOD:
            assert accepts(source, calls(family.calls, *good)), good
        for bad in BAD:
            assert not accepts(source, calls(family.calls, *bad)), bad
        assert not accepts(source, "It is warm.")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_several_calls_unless_the_client_wants_one(family: ReplyFormat) -> None:
    two = calls(family.calls, ("now", {}), ("get", {"room": "bad"}))
    assert accepts(grammar(family, tools=TOOLS).source, two)
    assert not accepts(grammar(family, tools=TOOLS, parallel_tool_calls=False).source, two)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_calls_come_to_an_end(family: ReplyFormat) -> None:
    source = grammar(family, tools=TOOLS).source
    assert accepts(source, calls(family.calls, *[("now", {})] * MAX_CALLS))
    assert not accepts(source, calls(family.calls, *[("now", {})] * (MAX_CALLS + 1)))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_named_tool_and_no_other(family: ReplyFormat) -> None:
    """G10: two tools whose names begin alike."""
    source = grammar(family, tools=TOOLS, tool_choice=ToolChoice("required", "get")).source
    assert accepts(source, calls(family.calls, ("get", {"room": "bad"})))
    assert not accepts(source, calls(family.calls, ("get", {"room": "bad"}), ("get", {"room": "bad"}))), "once"
    assert not accepts(source, calls(family.calls, ("get_weather", {"city": "x"})))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_with_tool_choice_auto_the_answer_is_free_until_a_call_begins(family: ReplyFormat) -> None:
    found = grammar(family, tools=TOOLS)
    assert found.triggers
    beginning = calls(family.calls, ("get", {"room": "bad"}))
    assert any(beginning.startswith(trigger) for trigger in found.triggers)
    assert grammar(family, tools=TOOLS, tool_choice=ToolChoice("required")).triggers == ()


@pytest.mark.parametrize(
    "family", [known.QWEN_CODER, known.GLM, known.GEMMA, known.FUNCTION_GEMMA], ids=lambda f: f.name
)
def test_arguments_that_are_no_json_keep_to_their_schema(family: ReplyFormat) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]+$"},
            "level": {"type": ["integer", "null"]},
            "on": {"const": True},
            "note": {"type": "string", "maxLength": 5},
            "tree": {"$ref": "#/$defs/node"},
            "any": {},
        },
        "required": ["name", "any"],
        "$defs": {
            "node": {"type": "object", "properties": {"in": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
        },
    }
    source = grammar(family, tools=(Tool("f", parameters=schema),), tool_choice=ToolChoice("required")).source
    for good in (
        {"name": "ab", "any": "text"},
        {"name": "ab", "level": 3, "on": True, "note": "12345", "any": [1, "x", {"k": None}]},
        {"name": "ab", "tree": {"in": [{}, {"in": []}]}, "any": {"k": "v"}},
    ):
        assert accepts(source, calls(family.calls, ("f", good))), good
    for bad in (
        {"name": "AB", "any": 1},
        {"name": "ab"},
        {"name": "ab", "on": False, "any": 1},
        {"name": "ab", "note": "123456", "any": 1},
    ):
        assert not accepts(source, calls(family.calls, ("f", bad))), bad


UNQUOTED = [known.QWEN_CODER, known.GLM, known.GEMMA, known.FUNCTION_GEMMA]
WHOLE: dict[str, Any] = {"type": "object", "additionalProperties": False}


def forced(family: ReplyFormat, schema: Any) -> str:
    """For one call of a tool f with such parameters."""
    tool = Tool("f", parameters=schema, path="tools[4]")
    return grammar(
        family, tools=(tool,), tool_choice=ToolChoice("required"), parallel_tool_calls=False, begun=False
    ).source


def argument(**words: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": words}, "required": ["a"]}


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
KEPT: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "optional number": (argument(anyOf=[{"type": "integer"}, {"type": "null"}]), [3, None], ["x", True, [1]]),
    "optional text": (argument(anyOf=[{"type": "string", "maxLength": 3}, {"type": "null"}]), ["ab", None], ["abcd"]),
    "oneOf": (argument(oneOf=[{"type": "boolean"}, POINT]), [True, {"x": 1}], [1, {"x": "y"}, {}]),
    "allOf": (argument(allOf=[{"type": "integer"}, {"minimum": 5}]), [5, 7], [4, "x"]),
    "allOf of texts": (
        argument(allOf=[{"type": "string", "minLength": 2}, {"pattern": "^a"}, {"maxLength": 3}]),
        ["ab", "abc"],
        ["a", "ba", "abcd"],
    ),
    "allOf of objects": (
        argument(allOf=[POINT, {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}]),
        [{"x": 1, "y": None}],
        [{"x": 1}, {"y": None}],
    ),
    "ref beside a word": (
        argument(**{"$ref": "#/$defs/n", "minimum": 5}) | {"$defs": {"n": {"type": "integer"}}},
        [5],
        [4, "x"],
    ),
    "text or bounded number": (
        argument(anyOf=[{"type": "string"}, {"type": "integer", "minimum": 5, "maximum": 7}]),
        ["all", 6],
        [8],
    ),
    "maxLength beside a pattern": (
        argument(type="string", pattern="^[a-z]+$", maxLength=3),
        ["abc", "a"],
        ["abcd", "A"],
    ),
    "pattern with alternatives": (argument(type="string", pattern="^ab$|c"), ["ab", "xcx"], ["abx", "x"]),
    "choice within a pattern": (argument(enum=["ab", "ba"], type="string", pattern="^a"), ["ab"], ["ba", "a"]),
    "choice of a type": (argument(type="string", enum=["a", None]), ["a"], [None]),
    "tuple": (
        argument(type="array", prefixItems=[{"type": "integer"}, {"type": "null"}], items=False, minItems=1),
        [[1], [1, None]],
        [[], ["a"], [1, 2], [1, None, 3]],
    ),
    "counted": (
        argument(type="object", minProperties=1, maxProperties=2),
        [{"x": 1}, {"x": 1, "y": [True]}],
        [{}, {"x": 1, "y": 2, "z": 3}],
    ),
    "patterned": (
        argument(type="object", patternProperties={"^x": {"type": "integer"}}, additionalProperties=False),
        [{}, {"x1": 1}],
        [{"y": 1}, {"x1": "a"}],
    ),
    "others of a type": (
        argument(type="object", properties={"n": {"type": "null"}}, additionalProperties={"type": "integer"}),
        [{"n": None, "nn": 1}],
        [{"n": 1}, {"nn": None}],
    ),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("family", UNQUOTED, ids=lambda family: family.name)
def test_what_a_schema_says_is_kept_where_strings_are_unquoted(family: ReplyFormat, name: str) -> None:
    """G9: nothing is dropped, and what the grammar lets through is read back as what fits."""
    schema, good, bad = KEPT[name]
    source, tool = forced(family, schema), Tool("f", parameters=schema)
    for value in good:
        assert accepts(source, text := calls(family.calls, ("f", {"a": value}))), value
        assert read(family, text, [tool]).decoded == [("f", {"a": value})]
    for value in bad:
        assert not accepts(source, calls(family.calls, ("f", {"a": value}))), value
    for seed in range(12):
        if (text := written(source, seed)) is not None:
            ((_, arguments),) = read(family, text, [tool]).decoded
            jsonschema.validate(arguments, schema)


AT_THE_TOP: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "anyOf": ({"anyOf": [POINT, argument(type="null")]}, [{"x": 1}, {"a": None}], [{}, {"x": "b"}, {"a": 1}]),
    "allOf": ({"allOf": [POINT, argument(type="null")]}, [{"x": 1, "a": None}], [{"x": 1}, {"a": None}]),
    "ref": ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, [{"x": 1}], [{}, {"x": "b"}, {"y": 1}]),
    "patterned": (
        {**WHOLE, "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "string"}}},
        [{}, {"x1": 1, "y": "b"}],
        [{"z": 1}, {"x1": "a"}],
    ),
    "counted": (
        {"type": "object", "minProperties": 1, "maxProperties": 2},
        [{"x": "1"}],
        [{}, dict.fromkeys("abc", "")],
    ),
    "required alone": ({"type": "object", "required": ["a"]}, [{"a": "1"}, {"a": "1", "b": "2"}], [{}, {"b": "1"}]),
    "others beside": (
        argument(type="integer") | {"additionalProperties": {"type": "string"}},
        [{"a": 1}, {"a": 1, "ab": "x", "b": "7"}],
        [{"a": "x"}],
    ),
}


@pytest.mark.parametrize("name", AT_THE_TOP)
@pytest.mark.parametrize("family", UNQUOTED, ids=lambda family: family.name)
def test_what_is_said_of_all_arguments_is_kept_where_they_are_unquoted(family: ReplyFormat, name: str) -> None:
    """G9"""
    schema, good, bad = AT_THE_TOP[name]
    source, tool = forced(family, schema), Tool("f", parameters=schema)
    for arguments in good:
        assert accepts(source, text := calls(family.calls, ("f", arguments))), arguments
        assert read(family, text, [tool]).decoded == [("f", arguments)]
    for arguments in bad:
        assert not accepts(source, calls(family.calls, ("f", arguments))), arguments


@pytest.mark.parametrize("name", ["pattern", "names"])
@pytest.mark.parametrize("family", [known.QWEN_CODER, known.GEMMA], ids=lambda family: family.name)
def test_what_cannot_be_written_unquoted_is_refused_by_its_place(family: ReplyFormat, name: str) -> None:
    """G9"""
    schema, place = {
        "pattern": (argument(type="string", pattern="(^a|b)"), r"\$\.properties\.a\.pattern"),
        "names": (
            {**WHOLE, "properties": {"x": {}}, "patternProperties": {"^a": {"type": "integer"}}},
            r"\$\.patternProperties",
        ),
    }[name]
    with pytest.raises(Unsupported, match=rf"tool 'f': the schema of tools\[4\], {place}: ") as info:
        forced(family, schema)
    assert info.value.param == "tools[4]"


def test_lists_that_gemma_cannot_write_are_refused() -> None:
    """G9"""
    schema = argument(type="array", allOf=[{"prefixItems": [{"type": "integer"}]}, {"items": {"type": "integer"}}])
    with pytest.raises(Unsupported, match=r"tool 'f': .*\$\.properties\.a\.prefixItems: "):
        forced(known.GEMMA, schema)
    assert accepts(forced(known.QWEN_CODER, schema), calls(known.QWEN_CODER.calls, ("f", {"a": [1]})))


@pytest.mark.parametrize("words", [{"maxLength": 200}, {"pattern": "a", "minLength": 9, "maxLength": 2000}], ids=str)
@pytest.mark.parametrize("part", ["xa </p ", "xa\n/par \n\n", "a/parameter"])
def test_beginnings_of_the_end_do_not_wear_the_engine_out(words: dict[str, Any], part: str) -> None:
    """It gives up on terminals with too many states."""
    source = forced(known.QWEN_CODER, argument(type="string", **words))
    text = calls(known.QWEN_CODER.calls, ("f", {"a": (part * 100)[:200]}))
    matcher = matcher_of(source)
    for byte in text.encode():
        matcher.compute_bitmask()
        if not matcher.try_consume_tokens([byte]):
            break
    assert not matcher.is_error(), matcher.get_error()


@pytest.mark.parametrize("words", [{}, {"pattern": "a"}, {"maxLength": 40}, {"enum": ["x"]}], ids=str)
@pytest.mark.parametrize("family", UNQUOTED, ids=lambda family: family.name)
def test_text_does_not_hold_the_mark_of_its_end(family: ReplyFormat, words: dict[str, Any]) -> None:
    """It would be read as the end."""
    mark = (family.calls.after_value if family.calls.arguments == "xml" else family.calls.quote).strip()
    source = forced(family, argument(type="string", **words))
    assert accepts(source, calls(family.calls, ("f", {"a": words.get("enum", ["an a"])[0]})))
    assert not accepts(source, calls(family.calls, ("f", {"a": f"a{mark}b"})))
    with pytest.raises(Unsupported, match="holds"):
        forced(family, argument(enum=[f"a{mark}b"]))


@pytest.mark.parametrize("family", [known.GEMMA, known.FUNCTION_GEMMA], ids=lambda family: family.name)
def test_names_with_blanks_are_read_back(family: ReplyFormat) -> None:
    schema = {"type": "object", "properties": {"due date": {"type": "integer"}, "who [x]": {"type": "string"}}}
    arguments = {"due date": 3, "who [x]": "a: b, c"}
    text = calls(family.calls, ("f", arguments))
    assert accepts(forced(family, schema), text)
    assert read(family, text, [Tool("f", parameters=schema)]).decoded == [("f", arguments)]


@pytest.mark.parametrize("name", ["a,b", "a:b", "a{", "a}", " a", "a ", ""])
def test_names_that_gemma_cannot_write_are_refused(name: str) -> None:
    nested = {"type": "object", "properties": {"in": {"type": "object", "properties": {name: {}}}}}
    with pytest.raises(Unsupported, match=r"tool 'f': the schema of tools\[4\], \$\.properties\.in\.properties\."):
        forced(known.GEMMA, nested)


@pytest.mark.parametrize("family", [known.HERMES, *UNQUOTED], ids=lambda family: family.name)
def test_most_optional_properties_that_are_taken_can_be_written(family: ReplyFormat) -> None:
    """G9"""
    for others in (False, True):
        properties = {f"p{i}": {"type": "string"} for i in range(450)}
        source = forced(family, {"type": "object", "properties": properties, "additionalProperties": others})
        assert accepts(source, calls(family.calls, ("f", {"p7": "x", "p449": "y"})))
        assert accepts(source, calls(family.calls, ("f", {})))


@pytest.mark.parametrize("family", [known.QWEN_CODER, known.GEMMA], ids=lambda family: family.name)
def test_what_cannot_be_kept_in_unquoted_text_is_said(family: ReplyFormat) -> None:
    notes: list[str] = []
    tool = Tool("f", parameters={"type": "object", "properties": {"day": {"type": "string", "format": "date"}}})
    grammar_for(
        Chat(messages=[], tools=(tool,)), family, begins_in_reasoning=False, marker_id=lambda _: None, notes=notes
    )
    assert notes == ["format date is not enforced in this model's way to write calls"]


def test_markers_that_are_control_tokens_are_named_by_their_ids() -> None:
    source = grammar(known.MISTRAL, ids={"[TOOL_CALLS]": 5, "[ARGS]": 6}, tools=(NOW,)).source
    assert '<[5]> "now" <[6]>' in source
    assert "TOOL_CALLS" not in source


def test_ids_of_control_tokens_are_taken_for_the_whole_text_only() -> None:
    source = grammar(known.GPT_OSS, ids={"<|channel|>": 7, "<|message|>": 8}, tools=(NOW,)).source
    assert '<[7]> "commentary to=functions.now <|constrain|>json" <[8]>' in source


def test_random_calls_fit_their_tools() -> None:
    source = grammar(tools=(LAMP,), tool_choice=ToolChoice("required"), parallel_tool_calls=False).source
    head, tail = '<tool_call>\n{"name": "get", "arguments": ', "}\n</tool_call>"
    for seed in range(20):
        if (text := written(source, seed)) is not None:
            arguments = json.loads(text.removeprefix(head).removesuffix(tail))
            jsonschema.validate(arguments, LAMP.parameters)


# ---- answers ----------------------------------------------------------------------------------------


def test_answer_is_json_that_fits() -> None:
    source = grammar(answer_format=ANSWER).source
    assert accepts(source, '{"x": 3}')
    for bad in ('{"x": "3"}', "{}", "x", '{"x": 3} and more', '```json\n{"x": 3}\n```'):
        assert not accepts(source, bad)


def test_any_object_is_an_object() -> None:
    for source in (grammar(answer_format=AnswerFormat({})).source, grammar_of_answer(AnswerFormat({}), []).source):
        assert accepts(source, '{"a": [1, {"b": null}]}')
        assert not accepts(source, "[1]")


def test_answer_or_a_call_where_both_are_asked_for() -> None:
    source = grammar(tools=TOOLS, answer_format=ANSWER).source
    assert accepts(source, '{"x": 3}')
    assert accepts(source, calls(known.HERMES_CALLS, ("now", {})))
    assert not accepts(source, "It is warm.")


def test_required_call_goes_before_the_answers_format() -> None:
    source = grammar(tools=TOOLS, tool_choice=ToolChoice("required"), answer_format=ANSWER).source
    assert accepts(source, calls(known.HERMES_CALLS, ("now", {})))
    assert not accepts(source, '{"x": 3}')


def test_answers_format_is_kept_where_no_tool_may_be_called() -> None:
    source = grammar(tools=TOOLS, tool_choice=ToolChoice("none"), answer_format=ANSWER).source
    assert accepts(source, '{"x": 3}')
    assert not accepts(source, calls(known.HERMES_CALLS, ("now", {})))


# ---- reasoning --------------------------------------------------------------------------------------

FORCED = [{"answer_format": ANSWER}, {"tools": (NOW,), "tool_choice": ToolChoice("required")}]
ENDS = ['{"x": 3}', '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>']


@pytest.mark.parametrize(("chat", "end"), list(zip(FORCED, ENDS, strict=True)), ids=["answer", "call"])
def test_reasoning_is_free_until_its_end(chat: dict[str, Any], end: str) -> None:
    begun = grammar(THINKER, begun=True, **chat).source
    assert accepts(begun, f"Hm. <b> {{ </think>\n\n{end}")
    assert accepts(begun, f"</think>{end}")
    assert not accepts(begun, end)
    not_begun = grammar(THINKER, **chat).source
    assert accepts(not_begun, f"<think>Hm.</think>\n\n{end}")
    assert accepts(not_begun, end)
    assert not accepts(not_begun, f"Hm.</think>{end}")


def test_who_wants_no_reasoning_gets_none() -> None:
    source = grammar(THINKER, answer_format=ANSWER, thinks=False).source
    assert accepts(source, '{"x": 3}')
    assert not accepts(source, '<think>Hm.</think>{"x": 3}')


def test_reasonings_end_may_be_a_control_token() -> None:
    source = grammar(THINKER, begun=True, ids={"<think>": 11, "</think>": 12}, answer_format=ANSWER).source
    assert "<[12]>" in source
    assert "</think>" not in source


def test_answer_stands_where_the_family_marks_it() -> None:
    source = grammar(known.GPT_OSS, answer_format=ANSWER).source
    assert accepts(source, '<|channel|>final<|message|>{"x": 3}')
    assert accepts(
        source, '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"x": 3}'
    )


# ---- refusals, and grammars of the client's own -----------------------------------------------------


def test_refusal_of_a_tools_schema_names_the_tool() -> None:
    """G9"""
    bad = replace(LAMP, parameters={"type": "object", "properties": {"a": {"not": {}}}})
    with pytest.raises(Unsupported, match=r"tool 'get': the schema of tools\[1\], \$\.properties\.a\.not") as info:
        grammar(tools=(WEATHER, bad))
    assert info.value.param == "tools[1]"


@pytest.mark.parametrize("name", ["\ud800", 'x"y', "a\nb", "ä", "a\0b", "\\"])
@pytest.mark.parametrize("family", [known.HERMES, known.QWEN_CODER, known.GEMMA], ids=lambda family: family.name)
def test_odd_names_are_taken_or_refused(family: ReplyFormat, name: str) -> None:
    for tool in (Tool(name), Tool("f", parameters={"type": "object", "properties": {name: {"type": "string"}}})):
        with contextlib.suppress(InvalidRequest):
            source = grammar(family, tools=(tool,)).source
            assert accepts(source, calls(family.calls, (tool.name, {}))), "what is taken works"


GBNF = 'root ::= item ("," item)*\nitem ::= [a-z]+ | "ä" # names\n'
LARK = 'start: item ("," item)*\nitem: /[a-z]+/ | "ä"\n'


@pytest.mark.parametrize("text", [GBNF, LARK])
def test_own_grammar_is_gbnf_or_lark(text: str) -> None:
    answer = AnswerFormat(grammar=text, path="grammar")
    for source in (
        grammar_of_answer(answer, []).source,
        grammar(answer_format=answer).source,
        grammar(THINKER, answer_format=answer, tools=TOOLS).source,
    ):
        assert accepts(source, "ab,ä,c")
        assert not accepts(source, "ab,")
    assert accepts(grammar(answer_format=answer, tools=TOOLS).source, calls(known.HERMES_CALLS, ("now", {})))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root ::= (",
        "root ::= nobody",
        'item ::= "a"',
        "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,  # G7
        "start: " + "(" * 60_000 + '"a"' + ")" * 60_000,
        "start: nobody",
        "start: /(/",
        "x" * 300_000,
        'start: "a\0"',
        'start: "\ud800"',
        'root ::= "\ud800"',
        "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(600)) + 'r600 ::= "x"',
        'root ::= "' + "a" * 20_000 + '"',
    ],
    ids=range(14),
)
def test_own_grammar_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        grammar_of_answer(AnswerFormat(grammar=text, path="grammar"), [])
    assert info.value.param == "grammar"
    assert info.value.message.startswith("grammar: ")
    assert len(info.value.message) < 500


def test_line_feeds_cost_no_time() -> None:
    """(The bound is for a machine at work on other things too: it was 50 times as much.)"""
    started_at = time.process_time()
    with contextlib.suppress(InvalidRequest):
        grammar_of_answer(AnswerFormat(grammar="\n" * 60_000, path="grammar"), [])
    assert time.process_time() - started_at < 1.0
