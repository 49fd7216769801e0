"""Ollama's API byte by byte: framing, what strict clients need in every object, notes, errors in its shape."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.blackbox.asking import BOTH_WAYS, assert_serves
from tests.daemon import Daemon

HELLO = [{"role": "user", "content": "Say hello."}]
SHORT = {"temperature": 0, "num_predict": 6}
CHAT: dict[str, Any] = {"model": "default", "messages": HELLO, "options": SHORT}
GENERATE: dict[str, Any] = {"model": "default", "prompt": "Say hello.", "options": SHORT}


def post(daemon: Daemon, path: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{daemon.url}{path}", content=content, timeout=120)


def get(daemon: Daemon, path: str) -> Any:
    response = httpx.get(f"{daemon.url}{path}", timeout=5)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def lines(response: httpx.Response) -> list[Any]:
    """Of a stream: each is JSON by itself, and none is blank."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert b"\r" not in response.content
    *parts, rest = response.content.split(b"\n")
    assert rest == b""
    return [json.loads(part) for part in parts]


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == response.headers["request-id"] != ""
    body = response.json()
    assert body.keys() == {"error"}
    assert isinstance(body["error"], str)
    assert body["error"]
    return str(body["error"])


# ---- what strict clients read --------------------------------------------------------------------------


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)


U64 = Annotated[int, Field(ge=0, lt=2**64)]


class Details(Strict):
    format: str
    family: str
    families: list[str] | None
    parameter_size: str
    quantization_level: str


class Listed(Strict):
    """An entry of /api/tags as Zed's serde types want it."""

    name: str
    modified_at: str
    size: U64
    digest: str
    details: Details


class Spoken(Strict):
    role: Literal["assistant"]
    content: str


class ChatLine(Strict):
    """A line of /api/chat as Zed's serde types, litellm and ollama-js want it."""

    model: str
    created_at: str
    message: Spoken
    done: bool


class Counts(Strict):
    done_reason: str
    total_duration: U64
    load_duration: U64
    prompt_eval_count: U64
    prompt_eval_duration: U64
    eval_count: U64
    eval_duration: U64


def test_tags_suit_zed(daemon: Daemon) -> None:
    (model,) = get(daemon, "/api/tags")["models"]
    entry = Listed.model_validate(model)
    assert model["model"] == entry.name
    assert re.fullmatch(r"[0-9a-f]{64}", entry.digest)
    assert entry.digest == get(daemon, "/api/tags")["models"][0]["digest"]
    assert datetime.fromisoformat(entry.modified_at) < datetime.now(UTC)


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_every_line_is_whole_and_the_last_one_counts_in_nanoseconds(
    daemon: Daemon, path: str, body: dict[str, Any]
) -> None:
    *others, last = lines(post(daemon, path, body))
    for line in (*others, last):
        if path == "/api/chat":
            ChatLine.model_validate(line)
        else:
            assert isinstance(line["response"], str)
        assert line["model"] == "default"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["created_at"])
        assert datetime.now(UTC) - datetime.fromisoformat(line["created_at"]) < timedelta(days=1)
    assert [line["done"] for line in (*others, last)] == [False] * len(others) + [True]
    counts = Counts.model_validate(last)
    parts = counts.load_duration + counts.prompt_eval_duration + counts.eval_duration
    assert abs(counts.total_duration - parts) < 10
    assert all("done_reason" not in line for line in others)


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_stream_is_what_comes_unless_it_is_declined(daemon: Daemon, path: str, body: dict[str, Any]) -> None:
    response = post(daemon, path, body | {"stream": False})
    assert response.headers["content-type"] == "application/json"
    Counts.model_validate(response.json())
    assert len(lines(post(daemon, path, body | {"stream": None}))) > 1


def test_ps_suits_open_webui(daemon: Daemon) -> None:
    (model,) = get(daemon, "/api/ps")["models"]
    assert model.keys() >= {"name", "model", "size", "digest", "details", "expires_at", "size_vram", "context_length"}
    expires = datetime.fromisoformat(model["expires_at"])
    assert int(expires.timestamp()) > datetime.now(UTC).timestamp()
    assert (type(model["size"]), type(model["size_vram"])) == (int, int)


def test_version_is_one_that_every_client_accepts(daemon: Daemon) -> None:
    major, minor, patch = map(int, get(daemon, "/api/version")["version"].split("."))
    assert (major, minor, patch) >= (0, 13, 0)


@pytest.mark.parametrize("path", ["/", "/api/tags", "/api/version", "/api/ps"])
def test_head_tells_that_somebody_is_there(daemon: Daemon, path: str) -> None:
    response = httpx.head(f"{daemon.url}{path}")
    assert (response.status_code, response.content) == (200, b"")
    assert httpx.get(f"{daemon.url}{path}").status_code == 200


@pytest.mark.parametrize("field", ["model", "name"])
def test_show_suits_continue_and_zed(daemon: Daemon, field: str) -> None:
    shown = post(daemon, "/api/show", {field: "default"}).json()
    assert shown.keys() >= {"modelfile", "parameters", "template", "details", "model_info", "capabilities"}
    Details.model_validate(shown["details"])
    parameters = dict(line.split(None, 1) for line in shown["parameters"].splitlines())
    assert int(parameters["num_ctx"]) == 16384
    assert json.loads(parameters["stop"]) == "\nUser:"
    architecture = shown["model_info"]["general.architecture"]
    assert type(shown["model_info"][f"{architecture}.context_length"]) is int
    assert "completion" in shown["capabilities"]


def test_model_is_needed_where_it_is_asked_about(daemon: Daemon) -> None:
    for path in ("/api/show", "/api/pull"):
        assert error_of(post(daemon, path, {}), 400) == "model is required"


# ---- loading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("stream", BOTH_WAYS)
@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload"), ("0s", "unload")])
def test_f2_body_without_a_question_is_one_line(
    daemon: Daemon, path: str, stream: bool, keep_alive: object, reason: str
) -> None:
    response = post(daemon, path, {"model": "default", "stream": stream, "keep_alive": keep_alive})
    (answer,) = lines(response) if stream else [response.json()]
    assert (answer["done"], answer["done_reason"], answer["model"]) == (True, reason, "default")
    assert answer["message" if path == "/api/chat" else "response"] in ({"role": "assistant", "content": ""}, "")


# ---- notes ---------------------------------------------------------------------------------------------


def test_b7_what_has_no_effect_is_said_in_a_header(daemon: Daemon) -> None:
    body = CHAT | {"keep_alive": "10m", "options": {**SHORT, "num_ctx": 8192, "num_gpu": 0}}
    notes = post(daemon, "/api/chat", body).headers["x-homeai-notes"]
    for name in ("keep_alive", "num_ctx", "num_gpu"):
        assert f"{name} has no effect" in notes


def test_b7_a_changing_context_size_changes_nothing(daemon: Daemon) -> None:
    """aider sends another one with every request."""
    engines = [engine.pid for engine in daemon.engines]
    texts = {
        post(daemon, "/api/chat", CHAT | {"stream": False, "options": {**SHORT, "num_ctx": num_ctx}}).json()["message"][
            "content"
        ]
        for num_ctx in (2048, 9131, 40000)
    }
    assert len(texts) == 1
    assert [engine.pid for engine in daemon.engines] == engines


def test_answer_to_a_plain_request_has_no_notes(daemon: Daemon) -> None:
    assert "x-homeai-notes" not in post(daemon, "/api/chat", CHAT).headers


# ---- messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city": "Rome"}', {}, None, ""])
def test_g12_earlier_calls_come_with_objects_or_texts(daemon: Daemon, arguments: object) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    assert lines(post(daemon, "/api/chat", CHAT | {"messages": messages}))[-1]["done"]


@pytest.mark.parametrize("content", ["", None, [{"type": "text", "text": "Say hello."}]])
def test_content_may_be_empty_or_come_in_parts(daemon: Daemon, content: object) -> None:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    assert lines(post(daemon, "/api/chat", CHAT | {"messages": messages}))[-1]["done"]


def test_half_an_emoji_is_survived(daemon: Daemon) -> None:
    body = json.dumps(CHAT).replace("Say hello.", "Say \\ud83d hello.").encode()
    assert lines(post(daemon, "/api/chat", body))[-1]["done"]


# ---- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/chat", b"{", 400, "not valid JSON"),
        ("/api/chat", b'{"model": "\xff"}', 400, "not UTF-8"),
        ("/api/chat", b"[]", 400, "must be a JSON object"),
        ("/api/chat", CHAT | {"messages": [{"role": "banana", "content": "Hi"}]}, 400, "'banana'"),
        ("/api/chat", CHAT | {"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]}, 400, "images"),
        ("/api/chat", CHAT | {"model": "nobody"}, 404, "model 'nobody' not found"),
        ("/api/chat", CHAT | {"think": "very"}, 400, "think: "),
        ("/api/chat", CHAT | {"think": True}, 400, '"default" does not support thinking'),
        ("/api/chat", CHAT | {"format": "xml"}, 400, "format: "),
        ("/api/chat", CHAT | {"keep_alive": "soon"}, 400, "keep_alive: "),
        ("/api/chat", CHAT | {"options": {"num_predict": "many"}}, 400, "options.num_predict: "),
        ("/api/generate", GENERATE | {"suffix": "end"}, 400, '"default" does not support insert'),
        ("/api/generate", GENERATE | {"template": "{{ .Prompt }}"}, 400, "template is not supported"),
        ("/api/generate", GENERATE | {"images": ["aGk="]}, 400, "images are not supported"),
        ("/api/generate", GENERATE | {"raw": True, "system": "Be brief."}, 400, "system"),
        ("/api/create", {"model": "mine"}, 501, "one resident model"),
        ("/api/push", {"model": "mine"}, 501, "one resident model"),
        ("/api/me", {}, 501, "one resident model"),
        ("/api/blobs/sha256:abc", b"data", 501, "one resident model"),
        ("/api/embed", {"model": "default", "input": [3]}, 400, "input[0]: "),
        ("/api/tags", {}, 405, "Method Not Allowed"),
    ],
)
def test_refusal_is_one_sentence_in_a_field(daemon: Daemon, path: str, body: object, status: int, message: str) -> None:
    assert message in error_of(post(daemon, path, body), status)


def test_nobody_was_harmed(daemon: Daemon) -> None:
    assert_serves(daemon)
    assert daemon.status()["requests"] == []
