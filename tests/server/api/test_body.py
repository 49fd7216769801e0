"""JSON → typed body: exact types, null as absent, errors that name the field."""

from __future__ import annotations

import contextlib
import gc
import json
from typing import Annotated

import pytest
from pydantic import Field

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.api.body import MAX_NESTED, Body, Integer, Refused, parse_body


class Item(Body):
    text: str


class Sample(Body):
    count: Annotated[Integer, Field(ge=0)] = 7
    ratio: float = 0.5
    flag: bool = False
    items: list[Item] = Field(default_factory=list)
    table: dict[str, int] = Field(default_factory=dict)
    magic: Refused = None


def parse(**fields: object) -> Sample:
    return parse_body(json.dumps(fields).encode(), Sample)


def refusal(raw: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(raw, Sample)
    return caught.value


def test_null_is_absent() -> None:
    assert parse(count=None, items=None, table=None) == Sample()


def test_unknown_fields_are_ignored() -> None:
    assert parse(unknown={"deep": [1]}) == Sample()


@pytest.mark.parametrize("fields", [{"count": 3.0}, {"ratio": 3}])
def test_json_has_one_kind_of_number(fields: dict[str, float]) -> None:
    assert {name: getattr(parse(**fields), name) for name in fields} == fields


@pytest.mark.parametrize(
    "fields", [{"count": True}, {"count": "3"}, {"count": 3.5}, {"ratio": True}, {"ratio": "0.5"}, {"flag": 1}]
)
def test_types_are_exact(fields: dict[str, object]) -> None:
    (name,) = fields
    assert refusal(json.dumps(fields).encode()).param == name


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"count": -1}, "count", "count: input should be greater than or equal to 0"),
        ({"items": [{"text": "a"}, {"text": 5}]}, "items[1].text", "items[1].text: input should be a valid string"),
        ({"items": [5]}, "items[0]", "items[0]: input should be an object"),
        ({"table": []}, "table", "table: input should be an object"),
        ({"table": {"a": "b"}}, "table.a", "table.a: input should be a valid integer"),
    ],
)
def test_mistake_is_named_by_its_path(fields: dict[str, object], param: str, message: str) -> None:
    error = refusal(json.dumps(fields).encode())
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize("value", [None, False, ""])
def test_what_cannot_be_done_may_be_switched_off(value: object) -> None:
    assert parse(magic=value).magic == value


@pytest.mark.parametrize("value", [True, "x", {}, [], {"a": 1}, 5])
def test_what_cannot_be_done_is_refused(value: object) -> None:
    with pytest.raises(Unsupported, match="magic is not supported") as caught:
        parse(magic=value)
    assert caught.value.param == "magic"


def test_byte_order_mark_is_skipped() -> None:
    assert parse_body(b'\xef\xbb\xbf{"count":1}', Sample).count == 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the request body is not valid JSON: "),
        (b'{"count":1', "the request body is not valid JSON: "),
        (b'{"x":NaN}', "the request body is not valid JSON: NaN"),
        (b'{"x":-Infinity}', "the request body is not valid JSON: -Infinity"),
        (b'{"x":' + b"9" * 5000 + b"}", "the request body has a number with too many digits"),
        (b"\xff", "the request body is not UTF-8"),
        (b"[]", "the request body must be a JSON object, not an array"),
        (b"null", "the request body must be a JSON object, not null"),
        (b"true", "the request body must be a JSON object, not a boolean"),
        (b'"x"', "the request body must be a JSON object, not a string"),
        (b"5", "the request body must be a JSON object, not a number"),
        (b"[" * 100_000, "the request body is nested too deeply"),
        (b'{"a":' * 100_000, "the request body is nested too deeply"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_body_that_is_no_object_is_explained(raw: bytes, message: str) -> None:
    error = refusal(raw)
    assert error.message.startswith(message)
    assert error.param is None


@pytest.mark.parametrize("escaped", [r"\ud83d", r"\ude00", r"\uDE00", r"a\ud83db"])
def test_half_a_character_becomes_one_replacement(escaped: str) -> None:
    body = parse_body(f'{{"items":[{{"text":"{escaped}"}}],"table":{{"{escaped}":1}}}}'.encode(), Sample)
    text = body.items[0].text
    assert text.count("\ufffd") == 1
    assert text.isprintable()
    assert list(body.table) == [text]


def test_halves_in_two_strings_are_not_one_character() -> None:
    body = parse_body(rb'{"items":[{"text":"\ud83d"},{"text":"\ude00"}]}', Sample)
    assert [item.text for item in body.items] == ["\ufffd", "\ufffd"]


def test_whole_characters_are_left_alone() -> None:
    body = parse_body(rb'{"items":[{"text":"\ud83d\ude00 \\ud83d"}]}', Sample)
    assert body.items[0].text == "😀 \\ud83d"


def test_half_a_character_deep_inside_is_no_error_of_the_server() -> None:
    raw = rb'{"x":"\ud83d","y":' + b"[" * 980 + b"]" * 980 + b"}"
    assert refusal(raw).message == "the request body is nested too deeply"


# ---- much in little ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [b"[]", b"{}", b'{"a":[]}', b"[[]]"])
def test_body_of_more_parts_than_can_be_checked_soon_is_refused(nested: bytes) -> None:
    raw = b'{"unknown":[' + b",".join([nested] * MAX_NESTED) + b"]}"
    assert refusal(raw).message == f"the request body has more than {MAX_NESTED} objects and arrays"


def test_brackets_in_a_text_are_not_parts() -> None:
    assert parse(items=[{"text": "{[" * MAX_NESTED}]).items[0].text == "{[" * MAX_NESTED


@pytest.mark.parametrize("raw", [b'{"count":1}', b'{"count":', b'{"x":NaN}'])
def test_garbage_is_collected_again_after_a_body_is_read(raw: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_body(raw, Sample)
    assert gc.isenabled()
