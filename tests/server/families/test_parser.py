"""Rules of reading an answer, on outputs of each family as its own template documents them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.server.families import known
from homeai.server.families.parser import AnswerParser
from homeai.server.families.syntax import ReplyFormat
from homeai.server.parts import CallEnd, CallStart, Content, Reasoning
from tests.server.families.examples import EXAMPLES, HERMES_PARIS, HERMES_ROME, MAGISTRAL, QWEN3, Example
from tests.server.families.reading import TOOLS, cuts, parts_of, read

FAMILIES = {example.family.name: example.family for example in EXAMPLES.values()}


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Example:
    return EXAMPLES[request.param]


# ---- what answers say ------------------------------------------------------------------------------


def test_answer_of_each_family_is_read(example: Example) -> None:
    answer = read(example.family, example.text, begins_in_reasoning=example.begins_in_reasoning)
    assert answer.decoded == list(example.calls)
    assert len(answer.calls) == len(example.calls)
    assert (answer.content, answer.reasoning) == (example.content, example.reasoning)


def test_cut_anywhere_the_answer_is_the_same(example: Example) -> None:
    whole = read(example.family, example.text, begins_in_reasoning=example.begins_in_reasoning)
    for pieces in cuts(example.text):
        assert read(example.family, pieces, begins_in_reasoning=example.begins_in_reasoning) == whole, pieces


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_cut_at_many_places_the_answer_is_the_same(data: st.DataObject) -> None:
    example = EXAMPLES[data.draw(st.sampled_from(sorted(EXAMPLES)))]
    places = sorted(data.draw(st.sets(st.integers(0, len(example.text)), max_size=12)))
    pieces = [example.text[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
    whole = read(example.family, example.text, begins_in_reasoning=example.begins_in_reasoning)
    assert read(example.family, pieces, begins_in_reasoning=example.begins_in_reasoning) == whole


def test_calls_are_numbered_from_0_each_with_an_id_of_its_own() -> None:
    """G13."""
    parser = AnswerParser(known.HERMES, TOOLS)
    parts = parser.push(f"{HERMES_PARIS}\n{HERMES_ROME}\n{HERMES_ROME}") + parser.finish()
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert [start.call for start in starts] == [0, 1, 2]
    assert len({start.call_id for start in starts}) == 3
    assert [part.call for part in parts if isinstance(part, CallEnd)] == [0, 1, 2]


def test_arguments_come_as_they_are_written() -> None:
    parser = AnswerParser(known.HERMES, TOOLS)
    assert parser.push('<tool_call>\n{"name": "get_weather", "arguments": ') == []
    start, begin = parser.push('{"city": "Par')
    assert (start.name, begin.text) == ("get_weather", '{"city": "Par')
    assert [part.text for part in parser.push("is")] == ["is"]
    assert [part.text for part in parser.push('"}')[:1]] == ['"}']


def test_text_arguments_in_blocks_come_as_they_are_written() -> None:
    parser = AnswerParser(known.QWEN_CODER, TOOLS)
    parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert [part.text for part in parser.push('Par"')] == ['Par\\"']
    assert [part.text for part in parser.push("is\n")] == ["is"]


# ---- text that is only text ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["It costs", " < 5 €", "{", "a [1]", "```py", "</b>"])
def test_text_is_not_held_back_once_it_cannot_be_a_mark(text: str) -> None:
    parser = AnswerParser(known.HERMES, TOOLS)
    parts = parser.push("So: ") + parser.push(text) + parser.push("!")
    assert "".join(part.text for part in parts) == f"So: {text}!"


def test_without_tools_calls_are_text() -> None:
    assert read(known.HERMES, HERMES_PARIS, ()).content == HERMES_PARIS
    assert read(QWEN3, f"<think>Hm</think>{HERMES_PARIS}", ()) == ("Hm", HERMES_PARIS, [], "rc")


def test_space_at_the_beginning_is_kept_where_an_answer_is_continued() -> None:
    assert [read(family, " three", tools).content for family in (known.HERMES, QWEN3) for tools in ((), TOOLS)] == [
        " three"
    ] * 4


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(text=st.text(alphabet='<>|{}[]`"\\:, \nabc/'))
@settings(max_examples=100, deadline=None)
def test_text_without_marks_is_never_changed(family: known.ReplyFormat, text: str) -> None:
    assert read(family, text).content == text
    assert read(family, list(text), ()).content == text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "unknown", "arguments": {"city": "Rome"}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": "no json"}\n</tool_call>',
        '<tool_call>\n{"name": get_weather}\n</tool_call>',
        "<tool_call>\nget_weather\n</tool_call>",
        '{"name": "get_weather", "age": 7}',
        '{"name": "Ann"}',
        "<tool_call>",
    ],
)
def test_what_only_looks_like_a_call_comes_out_as_text(text: str) -> None:
    for pieces in cuts(text):
        answer = read(known.HERMES, pieces)
        assert (answer.content, answer.calls) == (text, [])


def test_a_call_follows_what_only_looked_like_one() -> None:
    text = '<tool_call>{"name": "unknown"}</tool_call>'
    for pieces in cuts(text + HERMES_ROME):
        answer = read(known.HERMES, pieces)
        assert (answer.content, answer.decoded) == (text, [("get_weather", {"city": "Rome"})])


# ---- cut off ---------------------------------------------------------------------------------------


def test_answer_cut_off_anywhere_ends_no_call_that_is_not_whole(example: Example) -> None:
    """G2: Home Assistant's probe cuts a call at three tokens."""
    for length in range(len(example.text)):
        answer = read(example.family, example.text[:length], begins_in_reasoning=example.begins_in_reasoning)
        assert answer.decoded == list(example.calls)[: len(answer.decoded)]
        assert len(answer.calls) - len(answer.decoded) in (0, 1), "only the last one is not whole"
        assert all(call.is_whole for call in answer.calls[:-1])


def test_cut_off_before_its_arguments_a_call_is_text() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": '
    assert read(known.HERMES, text).content == text


def test_invalid_arguments_never_end_a_call() -> None:
    answer = read(known.HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": Rome}}\n</tool_call>')
    assert [(call.arguments, call.is_whole) for call in answer.calls] == [('{"city": Rome}', False)]


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_numbers_that_json_does_not_have_never_end_a_call(number: str) -> None:
    answer = read(known.LLAMA, f'{{"name": "get_weather", "parameters": {{"days": {number}}}}}')
    assert [call.is_whole for call in answer.calls] == [False]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_answer_whatever_it_is_raises_or_depends_on_its_cuts(family: known.ReplyFormat, data: st.DataObject) -> None:
    words = [*family.markers, *(family.reasoning or ()), family.text_begin, "get_weather", "get_time", " to=functions."]
    for syntax in (family.calls, *family.also):
        words += [syntax.begin, syntax.before_name, syntax.before_arguments, syntax.after_arguments, syntax.end]
        words += [syntax.separator, syntax.before_key, syntax.before_value, syntax.after_value, syntax.quote]
    words += [
        "{",
        "}",
        '"',
        "\\",
        ",",
        ":",
        " ",
        "\n",
        "[",
        "]",
        "1",
        "null",
        '{"city": "Rome"}',
        "{}",
        "a",
        '"name": "',
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    begins_in_reasoning = data.draw(st.booleans())
    whole = read(family, text, begins_in_reasoning=begins_in_reasoning)
    assert read(family, list(text), begins_in_reasoning=begins_in_reasoning) == whole
    at = data.draw(st.integers(0, len(text)))
    assert read(family, [text[:at], text[at:]], begins_in_reasoning=begins_in_reasoning) == whole


def test_huge_beginning_of_a_call_is_text() -> None:
    text = '<tool_call>\n{"arguments": {"a": "' + "b" * 40_000
    answer = read(known.HERMES, [text[i : i + 4] for i in range(0, len(text), 4)])
    assert answer.content == text


def test_deep_arguments_never_end_a_call() -> None:
    depth = 100_000
    answer = read(known.LLAMA, '{"name": "get_time", "parameters": {"a": ' + "[" * depth + "]" * depth + "}}")
    assert [call.is_whole for call in answer.calls] == [False]


# ---- reasoning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no-tools", "tools"])
def test_no_mark_of_reasoning_is_ever_in_the_content(tools: tuple[known.ReplyFormat, ...]) -> None:
    """H20."""
    for text in (
        "<think>\n\n</think>\n\nYes",
        "</think>Yes",
        "<think>a</think></think>Yes",
        "\n\n<think>\n</think>Yes",
    ):
        for pieces in cuts(text):
            assert read(QWEN3, pieces, tools).content == "Yes"


def test_control_tokens_begin_reasoning_anywhere() -> None:
    assert read(MAGISTRAL, "One.[THINK]Hm[/THINK]Two.") == ("Hm", "One.Two.", [], "crc")


def test_space_before_reasoning_goes_wherever_it_is_cut() -> None:
    text = "One.\n[THINK]Hm[/THINK]\nTwo."
    for tools in ((), TOOLS):
        assert {read(MAGISTRAL, pieces, tools).content for pieces in cuts(text)} == {"One.Two."}


def test_unfinished_reasoning_stays_reasoning() -> None:
    assert read(QWEN3, ["It may", " be", "\n", "so"], begins_in_reasoning=True) == ("It may be\nso", "", [], "r")


def test_family_that_does_not_think_has_no_reasoning() -> None:
    assert read(known.HERMES, "<think>a</think>b", (), begins_in_reasoning=True).content == "<think>a</think>b"


# ---- the cost --------------------------------------------------------------------------------------


def test_plain_text_is_passed_on_as_it_comes() -> None:
    parser = AnswerParser(known.HERMES)
    assert parser.push("a < {b}\n") == [Content("a < {b}\n")]
    assert parser.push("") == []
    assert parser.finish() == []


def test_parts_say_which_kind_they_are() -> None:
    assert parts_of(QWEN3, ["<think>a</think>", "b"], ()) == [Reasoning("a"), Content("b")]
    assert replace(QWEN3, reasoning=None) == known.HERMES


# ---- cut by the token limit ------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, len('<tool_call>\n{"name": "get_weather"')))
def test_call_that_the_token_limit_cut_is_not_read_out_as_text(length: int) -> None:
    parser = AnswerParser(known.HERMES, TOOLS)
    begun = '<tool_call>\n{"name": "get_weather", "arguments": {}}'[:length]
    parts = parser.push("Let me see.") + parser.push(begun) + parser.finish(is_cut=True)
    assert parts == [Content("Let me see.")]


def test_what_only_looked_like_a_call_is_text_when_the_answer_is_complete() -> None:
    parser = AnswerParser(known.HERMES, TOOLS)
    parts = parser.push("Let me see.") + parser.push("<tool_") + parser.finish()
    assert "".join(part.text for part in parts if isinstance(part, Content)) == "Let me see.<tool_"


# ---- reasoning that nobody wants ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (known.GPT_OSS, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi"),
        (known.GEMMA, "<|channel>thought\nHm.<channel|>Hi"),
    ],
    ids=["gpt-oss", "gemma"],
)
def test_h20_reasoning_that_nobody_wants_is_left_out(family: ReplyFormat, text: str) -> None:
    """Some models reason all the same."""
    for pieces in cuts(text):
        parser = AnswerParser(family, hides_reasoning=True)
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
        assert {type(part) for part in parts} == {Content}
        assert "".join(part.text for part in parts if isinstance(part, Content)) == "Hi"
