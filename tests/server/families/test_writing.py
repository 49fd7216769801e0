"""Rules of calls that we write for a model: its own parser reads them back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.server.conversation import Tool, ToolCall
from homeai.server.families import known
from homeai.server.families.parser import new_call_id
from homeai.server.families.syntax import ANY, CallSyntax, ReplyFormat
from homeai.server.families.writing import write_calls
from tests.server.families.reading import read

FAMILIES = {value.name: value for value in vars(known).values() if isinstance(value, ReplyFormat)}
TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
TYPES = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


def ways() -> list[tuple[ReplyFormat, CallSyntax]]:
    return [(family, syntax) for family in FAMILIES.values() for syntax in (family.calls, *family.also)]


@pytest.mark.parametrize(("family", "syntax"), ways(), ids=lambda value: getattr(value, "name", None))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_what_is_written_is_read_back(family: ReplyFormat, syntax: CallSyntax, data: st.DataObject) -> None:
    if ANY in syntax.before_arguments:
        return  # only ever read
    values = VALUES if syntax.arguments != "gemma" else _without_odd_keys()
    arguments = data.draw(st.dictionaries(KEYS, values, max_size=4))
    properties = {key: {"type": TYPES[type(value)]} for key, value in arguments.items()}
    tools = [Tool("set", "", {"type": "object", "properties": properties}), Tool("set_it"), Tool("other")]
    calls = [ToolCall("set", arguments), ToolCall("set_it", {})]
    num_calls = 1 if family is known.GPT_OSS else 2
    text = write_calls(syntax, calls[:num_calls])
    answer = read(family, data.draw(st.sampled_from([[text], list(text)])), tools)
    assert answer.decoded == [("set", arguments), ("set_it", {})][:num_calls]
    assert answer.content == ""


def _without_odd_keys() -> st.SearchStrategy[object]:
    """Gemma writes keys without quotes."""
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=6,
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_trigger_is_where_its_call_begins(family: ReplyFormat) -> None:
    syntax = family.calls
    assert (syntax.begin + syntax.before_name).startswith(syntax.trigger)


def test_ids_differ() -> None:
    assert len({new_call_id() for _ in range(100)}) == 100
