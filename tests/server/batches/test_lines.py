"""Every line of an input file is checked before any of them is run."""

from __future__ import annotations

import io
import json

import pytest

from homeai.server.batches import lines
from homeai.server.batches.lines import BOM, MAX_ERRORS, MAX_ID_LENGTH, MAX_LINES, Checked, Line, check, read

ENDPOINT = "/v1/completions"


def line(custom_id: object = "a", **fields: object) -> bytes:
    whole = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"prompt": "Hi"}} | fields
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode() + b"\n"


def checked(raw: bytes) -> Checked:
    return check(io.BytesIO(raw), ENDPOINT)


@pytest.mark.parametrize("before", [b"", BOM, b"\n \r\n"])
def test_line_is_found_again_where_it_lies(before: bytes) -> None:
    raw = before + line("ä") + b"\r\n" + line("b").rstrip()
    result = checked(raw)
    assert result.errors == []
    found = [read(raw[place.start : place.start + place.size], ENDPOINT) for place in result.places]
    assert found == [Line("ä", ENDPOINT, {"prompt": "Hi"}), Line("b", ENDPOINT, {"prompt": "Hi"})]


def test_body_is_left_to_its_endpoint() -> None:
    """Also what no endpoint takes."""
    body = rb'{"prompt": "\ud800", "n": 20000000000000000000000, "p": NaN, "t": 1.0}'
    line = read(b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": ' + body + b"}", ENDPOINT)
    assert line is not None
    assert line.content == body


def test_line_that_was_changed_meanwhile_is_not_read() -> None:
    assert read(line()[1:], ENDPOINT) is None


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"no json", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"1" * 5000, "invalid_json_line", None),
        (b'"\xff"', "invalid_json_line", None),
        (b'{"custom_id":' + b"[" * 100_000, "invalid_json_line", None),
        (line(None), "missing_custom_id", "custom_id"),
        (line(7), "invalid_custom_id", "custom_id"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("x" * (MAX_ID_LENGTH + 1)), "invalid_custom_id", "custom_id"),
        (line().replace(b'"a"', rb'"\ud800"'), "invalid_custom_id", "custom_id"),
        (line(method=None), "missing_method", "method"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(body=None), "missing_body", "body"),
        (line(body=[]), "invalid_body", "body"),
        (line(body="text"), "invalid_body", "body"),
    ],
)
def test_line_that_cannot_be_used_is_named(raw: bytes, code: str, param: str | None) -> None:
    result = checked(line("fine") + b"\n" + raw.rstrip() + b"\n" + line("also fine"))
    (error,) = result.errors
    assert (error.line, error.code, error.param) == (3, code, param)
    assert error.message


def test_id_comes_once() -> None:
    (error,) = checked(line("a") + line("b") + line("a")).errors
    assert (error.line, error.code) == (3, "duplicate_custom_id")
    assert error.message == "custom_id 'a' is that of line 1"


@pytest.mark.parametrize("raw", [b"", b"\n\n", BOM])
def test_file_without_requests_is_an_error(raw: bytes) -> None:
    assert [(error.line, error.code) for error in checked(raw).errors] == [(None, "empty_file")]


def test_not_all_of_many_errors_are_told() -> None:
    assert len(checked(b"x\n" * 10 * MAX_ERRORS).errors) == MAX_ERRORS


def test_batch_has_so_many_lines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINES == 50_000
    monkeypatch.setattr(lines, "MAX_LINES", 3)
    raw = b"".join(line(str(i)) for i in range(3))
    assert checked(raw).errors == []
    assert [(error.line, error.code) for error in checked(raw + line("more")).errors] == [(4, "too_many_requests")]
