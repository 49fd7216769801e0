"""The ways to ask for text, one for each API, for rules that hold on all of them alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.daemon import Daemon

ENDED_BY_LENGTH = ("length", "max_tokens", "limit", "incomplete")


@dataclass(frozen=True)
class Said:
    """What an answer says, whole or joined from a stream."""

    text: str
    reason: str | None
    num_tokens: int
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Api:
    """`goes_on` makes the body that has a text continued; `asks` the one that has it answered."""

    path: str
    goes_on: Callable[[str], dict[str, Any]]
    asks: Callable[[str], dict[str, Any]]
    limited: Callable[[int], dict[str, Any]]
    read: Callable[[list[Any]], Said]
    always: dict[str, Any]  # fields of every body: the likeliest tokens

    def body(self, text: str, max_tokens: int, *, stream: bool = False, goes_on: bool = True) -> dict[str, Any]:
        """Greedy."""
        wanted = self.goes_on(text) if goes_on else self.asks(text)
        return merged(self.always | wanted | {"stream": stream}, self.limited(max_tokens))

    def post(self, daemon: Daemon, body: dict[str, Any]) -> httpx.Response:
        content = json.dumps(body).encode()  # unlike httpx's own: lone surrogates go out, escaped
        return httpx.post(f"{daemon.url}{self.path}", content=content, timeout=120)

    def said(self, response: httpx.Response) -> Said:
        assert response.status_code == 200, response.text
        return self.read(list(_objects(response)))


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Objects in both are one."""
    both = one.keys() & other.keys()
    return one | other | {key: one[key] | other[key] for key in both if isinstance(one[key], dict)}


def message_of(response: httpx.Response) -> str:
    """Of a refusal, in whichever shape."""
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]  # type: ignore[no-any-return]


def _objects(response: httpx.Response) -> Iterator[Any]:
    kind = response.headers["content-type"].partition(";")[0]
    if kind == "application/json":
        yield response.json()
        return
    for line in response.text.split("\n"):
        data = line if kind == "application/x-ndjson" else line.partition("data: ")[2]
        if data and data != "[DONE]":
            yield json.loads(data)


def _user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _assistant(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": text}]}


def _prompt(text: str) -> dict[str, Any]:
    return {"prompt": text}


def _of_openai(objects: list[Any]) -> Said:
    choices = [choice for one in objects for choice in one["choices"]]
    parts = [choice.get("text") or (choice.get("delta") or choice.get("message") or {}) for choice in choices]
    pieces = tuple(part if isinstance(part, str) else part.get("content") or "" for part in parts)
    reason = next((choice["finish_reason"] for choice in choices if choice["finish_reason"]), None)
    return Said("".join(pieces), reason, objects[-1]["usage"]["completion_tokens"], pieces)


def _of_responses(objects: list[Any]) -> Said:
    *events, last = objects
    pieces = tuple(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    response = last.get("response", last)
    text = "".join(part["text"] for item in response["output"] for part in item.get("content", ()))
    assert not events or text == "".join(pieces)
    return Said(text, response["status"], response["usage"]["output_tokens"], pieces)


def _of_messages(objects: list[Any]) -> Said:
    if objects[0]["type"] == "message":
        (message,) = objects
        text = "".join(block["text"] for block in message["content"])
        return Said(text, message["stop_reason"], message["usage"]["output_tokens"])
    pieces = tuple(one["delta"]["text"] for one in objects if one["type"] == "content_block_delta")
    (end,) = [one for one in objects if one["type"] == "message_delta"]
    return Said("".join(pieces), end["delta"]["stop_reason"], end["usage"]["output_tokens"], pieces)


def _of_ollama(objects: list[Any]) -> Said:
    pieces = tuple(one["message"]["content"] if "message" in one else one["response"] for one in objects)
    return Said("".join(pieces), objects[-1]["done_reason"], objects[-1]["eval_count"], pieces)


def _of_llamacpp(objects: list[Any]) -> Said:
    pieces = tuple(one["content"] for one in objects)
    return Said("".join(pieces), objects[-1]["stop_type"], objects[-1]["tokens_predicted"], pieces)


def _max_tokens(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda count: {name: count}


def _num_predict(count: int) -> dict[str, Any]:
    return {"options": {"num_predict": count}}


USAGE = {"temperature": 0, "stream_options": {"include_usage": True}}
GREEDY = {"temperature": 0}
APIS = {
    api.path: api
    for api in (
        Api("/v1/chat/completions", _assistant, _user, _max_tokens("max_tokens"), _of_openai, USAGE),
        Api("/v1/completions", _prompt, _prompt, _max_tokens("max_tokens"), _of_openai, USAGE),
        Api(
            "/v1/responses",
            lambda text: {"input": text},
            lambda text: {"input": text},
            _max_tokens("max_output_tokens"),
            _of_responses,
            GREEDY,
        ),
        Api("/v1/messages", _assistant, _user, _max_tokens("max_tokens"), _of_messages, GREEDY),
        Api("/api/chat", _assistant, _user, _num_predict, _of_ollama, {"options": GREEDY}),
        Api(
            "/api/generate",
            lambda text: {"prompt": text, "raw": True},
            _prompt,
            _num_predict,
            _of_ollama,
            {"options": GREEDY},
        ),
        Api("/completion", _prompt, _prompt, _max_tokens("n_predict"), _of_llamacpp, GREEDY),
    )
}
CHATS = {path: APIS[path] for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses")}
