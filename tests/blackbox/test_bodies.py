"""Bodies that no client should send: broken JSON, wrong types, impossible numbers, too much of everything.

Each is refused with the field's name, or answered; never an error of the server, and the next request works.
Cases E4, E5, E6, E8, E10, E11, E12, E14.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.blackbox.asking import BOTH_WAYS, ONE_TOKEN, ONE_WORD, ask, assert_serves, assert_unharmed, error_of, post
from tests.daemon import Daemon
from tests.streaming import CHAT, COMPLETIONS

BODIES = {"completion": ONE_TOKEN, "chat": ONE_WORD}
HALF = "\ud83d"
HALVES = [HALF, "\ude00", "\ude00\ud83d", "\ud800\udbff", "ok " + HALF, HALF + " ok"]
REPLACED = "\ufffd"

any_endpoint = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


@pytest.fixture(scope="module", autouse=True)
def _daemon_is_unharmed(daemon: Daemon) -> Iterator[None]:
    yield
    assert_unharmed(daemon)


# ---- not JSON, or not an object --------------------------------------------------------------------------


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" \n",
        b"{",
        b"hello",
        b'{:"model":"x"}',
        b'{"prompt":"a",}',
        b"{'prompt':'a'}",
        b'{"prompt":"a"} {"prompt":"b"}',
        b'{"prompt":"a\nb"}',
        b'{"prompt":"\\x41"}',
        b"prompt=a&max_tokens=1",
        b'{"prompt":"\xc4\xe3\xba\xc3"}',  # GBK
        b'{"prompt":"\xe9"}',  # Latin-1
        b'{"prompt":"\xed\xa0\xbd"}',  # a surrogate in UTF-8, which is none
        '{"prompt":"a"}'.encode("utf-16"),
        b"\x00\x01\x02",
        b"[]",
        b'[{"prompt":"a"}]',
        b"null",
        b"true",
        b"5",
        b'"a"',
        b'{"temperature":NaN}',
        b'{"temperature":-Infinity}',
        b'{"unknown":[{"x":Infinity}]}',
        b'{"max_tokens":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages":' + b'[{"content":' * 50_000 + b"1" + b"}]" * 50_000 + b"}",
        b'{"prompt":"\\ud83d","x":' + b"[" * 950 + b"]" * 950 + b"}",
    ],
    ids=lambda raw: raw[:24].decode("latin-1"),
)
def test_body_that_is_no_json_object_is_refused(daemon: Daemon, path: str, raw: bytes) -> None:
    assert "body" in error_of(post(daemon, raw, path))["message"]


def test_body_may_begin_with_a_byte_order_mark(daemon: Daemon) -> None:
    assert post(daemon, b"\xef\xbb\xbf" + json.dumps(ONE_TOKEN).encode()).status_code == 200


def test_last_of_two_equal_keys_counts(daemon: Daemon) -> None:
    raw = b'{"prompt":"a","max_tokens":"x","ignore_eos":true,"max_tokens":2}'
    assert post(daemon, raw).json()["usage"]["completion_tokens"] == 2


def test_unknown_fields_are_ignored(daemon: Daemon) -> None:
    unknown = {"num_ctx": 1, "keep_alive": -1, "x": {"y": [1e999]}, "": None, "\u0000": "\u0000", "🫨": "🫨"}
    raw = json.dumps(ONE_TOKEN | unknown).replace("Infinity", "1e999").encode()
    assert post(daemon, raw).status_code == 200


# ---- halves of characters --------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=ascii)
@pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])
def test_half_a_character_is_read_as_a_replacement(daemon: Daemon, half: str, stream: bool) -> None:
    replaced = "".join(REPLACED if "\ud800" <= c <= "\udfff" else c for c in half)
    usages = [ask(daemon, stream=stream, prompt=text, max_tokens=1).usage for text in (half, replaced)]
    assert usages[0] == usages[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": HALF}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": h} for h in ("\ud83d", "\ude00")]}]},
        {"messages": [{"role": "user", "content": "a", "name": HALF}]},
        {"messages": [{"role": "system", "content": HALF}, {"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": HALF}]},
        {"messages": [{"role": "tool", "content": HALF, "tool_call_id": HALF}]},
        {"prompt": HALF},
        {"prompt": ["\ud83d", "\ude00"]},
        {"prompt": "a", "stop": HALF},
        {"prompt": "a", "stop": [HALF, "\ude00"]},
        {"prompt": "a", "user": HALF},
        {"prompt": "a", "metadata": {HALF: [HALF]}},
        {"prompt": "a", HALF: HALF},
    ],
    ids=ascii,
)
def test_half_a_character_anywhere_leaves_the_request_alive(daemon: Daemon, fields: dict[str, object]) -> None:
    assert post(daemon, fields | {"max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": HALF}, 404, "model"),
        ({"logit_bias": {HALF: 1}}, 400, "logit_bias"),
        ({"messages": [{"role": HALF, "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": HALF}]}]}, 400, "messages[0].content[0]"),
        ({"stream": HALF}, 400, "stream"),
        ({"tool_choice": HALF, "messages": [{"role": "user", "content": "x"}]}, 400, "tool_choice"),
    ],
    ids=ascii,
)
def test_half_a_character_in_a_refusal_does_not_break_it(
    daemon: Daemon, fields: dict[str, object], status: int, param: str
) -> None:
    body = fields if "messages" in fields else ONE_TOKEN | fields
    assert error_of(post(daemon, body), status)["param"] == param


def test_conversation_goes_on_after_half_a_character(daemon: Daemon) -> None:
    messages = [{"role": "user", "content": "a" + HALF}, {"role": "assistant", "content": "b"}]
    assert post(daemon, {"messages": [*messages, {"role": "user", "content": "c"}], "max_tokens": 1}).status_code == 200


# ---- wrong types and impossible values ---------------------------------------------------------------------

INTEGERS = ["n", "max_tokens", "n_predict", "min_tokens", "top_k", "repeat_last_n", "seed"]
FLOATS = [
    *["temperature", "top_p", "min_p", "repeat_penalty", "repetition_penalty"],
    *["presence_penalty", "frequency_penalty", "sse_ping_interval"],
]
BOOLEANS = ["stream", "ignore_eos", "cache_prompt"]
STRINGS = ["model", "user"]
OBJECTS = ["stream_options", "logit_bias", "response_format"]

WRONG = {
    "integer": (INTEGERS, ["5", "x", "", True, False, 1.5, [], [1], {}, "NaN"]),
    "number": (FLOATS, ["0.5", "x", True, [], {}, [0.5]]),
    "boolean": (BOOLEANS, ["true", "yes", 1, 0, 1.0, [], {}]),
    "string": (STRINGS, [5, 1.5, True, [], {}, ["x"]]),
    "object": (OBJECTS, ["x", 5, True, [], [1]]),
    "list": (["stop"], [5, True, {}, {"a": "b"}]),
}


@any_endpoint
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (names, _) in WRONG.items() for name in names])
def test_value_of_another_type_is_refused_by_name(
    daemon: Daemon, body: dict[str, object], kind: str, name: str
) -> None:
    for value in WRONG[kind][1]:
        error = error_of(post(daemon, body | {name: value}))
        assert error["param"] == name, value
        assert f"valid {kind}" in error["message"] or "object" in error["message"], value


@any_endpoint
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", [0, -1, 10**30]),
        ("max_tokens", [-2, -(10**30)]),
        ("min_tokens", [-1]),
        ("top_k", [-2, 2**31, 10**30]),
        ("repeat_last_n", [-2, 2**31, 10**30]),
        ("seed", [2**64, -(2**63) - 1, 10**30, 1e300]),
        ("temperature", [-0.1, 2.1, 5, 1e308]),
        ("top_p", [-0.5, 1.1, 2]),
        ("min_p", [-0.5, 1.1]),
        ("repeat_penalty", [0, -1, 1e-300, 1e-45, 11]),
        ("repetition_penalty", [0, -1, 1e-300, 5e-324, 11]),
        ("presence_penalty", [-2.1, 2.1, 1e308]),
        ("frequency_penalty", [-2.1, 2.1, 1e308]),
    ],
)
def test_number_out_of_range_is_refused_by_name(
    daemon: Daemon, body: dict[str, object], name: str, values: list[float]
) -> None:
    for value in values:
        assert error_of(post(daemon, body | {name: value}))["param"] == name, value


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "logprobs", "best_of"])
def test_number_that_is_none_is_refused(daemon: Daemon, name: str, number: str) -> None:
    error = error_of(post(daemon, f'{{"prompt":"a","{name}":{number}}}'.encode()))
    assert name in error["message"] or number in error["message"]


@any_endpoint
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("min_tokens", [10**30]),
        ("seed", [0, -1, -(2**63), 2**64 - 1, 7.0]),
        ("temperature", [0, 5e-324, 1e-30, 2]),
        ("top_p", [0, 1e-300, 1]),
        ("top_k", [-1, 0, 1, 2**31 - 1, 40.0]),
        ("min_p", [0, 1e-300, 1]),
        ("repeat_penalty", [0.01, 10]),
        ("repeat_last_n", [-1, 0, 2**31 - 1]),
        ("sse_ping_interval", [-1e308, -1, 0, 1e-300, 1e308]),
        ("stop", ["", [], [""], "x" * 1_000_000, ["🫨", "\n", "\x00"]]),
        ("user", ["", "x" * 100_000, "\n\x00", "🫨"]),
        ("model", ["", "default"]),
        ("response_format", [{"type": "text"}]),
        ("logit_bias", [{}, {"0": 100, "262143": -100}, {"5": 1.5}]),
    ],
)
def test_value_at_the_edge_is_served(daemon: Daemon, body: dict[str, object], name: str, values: list[object]) -> None:
    for value in values:
        assert ask(daemon, **body, **{name: value}).num_tokens <= 1, value


def test_sampling_at_every_edge_at_once_leaves_the_engine_alive(daemon: Daemon) -> None:
    """Penalties, bias and temperature may each be extreme; no logit may overflow."""
    extreme = {"repeat_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": -2, "repeat_last_n": -1}
    for temperature in (0, 5e-324, 2):
        body = extreme | {"temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": True}
        assert ask(daemon, prompt=[2, 1, 106, 212, 5], logit_bias={"5": 100}, max_tokens=8, **body).num_tokens == 8


@pytest.mark.parametrize(
    ("bias", "word"),
    [
        ({"-1": 1}, "-1"),
        ({"262144": 1}, "262144"),
        ({"9" * 30: 1}, "9" * 30),
        ({"x": 1}, "integer"),
        ({"1.5": 1}, "integer"),
        ({"": 1}, "integer"),
        ({"5": 101}, "100"),
        ({"5": -100.1}, "-100"),
        ({"5": "1"}, "number"),
        ({"5": True}, "number"),
        ({"5": None}, "number"),
        ({"5": [1]}, "number"),
        ({str(i): 1 for i in range(100_000)}, "100000"),
    ],
)
def test_bias_that_cannot_be_applied_is_refused(daemon: Daemon, bias: dict[str, object], word: str) -> None:
    error = error_of(post(daemon, ONE_TOKEN | {"logit_bias": bias}))
    assert error["param"].startswith("logit_bias")
    assert word in error["message"]


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([-1], "prompt[0]"),
        ([5, -1], "prompt[1]"),
        ([[5], [-1]], "prompt[1][0]"),
        ([5279552648203111001], "5279552648203111001"),
        ([10**30], "vocabulary"),
        ([262144], "262144"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ([None], "prompt[0]"),
        ([5, "a"], "prompt[1]"),
        (["a", 5], "prompt[1]"),
        ([[5], "a"], "prompt[1]"),
        ([[[5]]], "prompt[0][0]"),
        ([{}], "prompt[0]"),
        ([], "empty"),
        ([[]], "empty"),
        ({}, "prompt"),
        (5, "prompt"),
        (True, "prompt"),
        (["a"] * 300, "300"),
        ([[5]] * 300, "300"),
        ([-1] * 1_000_000, "prompt[0]"),
    ],
    ids=lambda value: str(value)[:24],
)
@pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])
def test_prompt_that_is_no_prompt_is_refused(daemon: Daemon, prompt: object, word: str, stream: bool) -> None:
    error = error_of(post(daemon, {"prompt": prompt, "stream": stream}))
    assert error["param"].startswith("prompt")
    assert word in error["message"]
    assert_serves(daemon)


@pytest.mark.parametrize("name", ["system_prompt", "stop", "stream_options", "messages", "tools"])
def test_string_where_structure_is_needed_is_harmless(daemon: Daemon, name: str) -> None:
    assert post(daemon, ONE_WORD | {name: "x"}).status_code in (200, 400)
    assert_serves(daemon)


# ---- too much ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tight(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("server.max_body_bytes=1000")


def pieces(size: int) -> Iterator[bytes]:
    """A body without Content-Length, in chunks."""
    yield b'{"max_tokens":1,"prompt":"'
    for _ in range(size // 100):
        yield b"a" * 100
    yield b'"}'


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/completions"])
@pytest.mark.parametrize("size", [2000, 1_000_000])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "chunked"])
def test_body_over_the_limit_is_refused_by_its_bytes(tight: Daemon, path: str, size: int, is_chunked: bool) -> None:
    content = pieces(size) if is_chunked else b"".join(pieces(size))
    error = error_of(httpx.post(f"{tight.url}{path}", content=content), 413)
    assert error["code"] == "request_too_large"
    assert "1000 maximum" in error["message"]
    assert_serves(tight)


def test_body_in_chunks_up_to_the_limit_is_read(tight: Daemon) -> None:
    assert httpx.post(f"{tight.url}{COMPLETIONS}", content=pieces(800), timeout=120).status_code == 200


def test_compressed_body_is_counted_as_it_is_unpacked(tight: Daemon) -> None:
    headers = {"content-encoding": "gzip"}
    bomb = gzip.compress(b" " * 500_000)
    error = error_of(httpx.post(f"{tight.url}{COMPLETIONS}", content=bomb, headers=headers), 413)
    assert error["code"] == "request_too_large"
    assert "1000 bytes maximum" in error["message"]
