"""One request over plain HTTP and its answer: whole, or joined from a stream whose framing is checked on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.daemon import Daemon
from tests.streaming import CHAT, COMPLETIONS

GREEDY: dict[str, object] = {"temperature": 0}
ONE_TOKEN: dict[str, object] = {"prompt": "a", "max_tokens": 1}
ONE_WORD: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
BOTH_WAYS = [False, True]


@dataclass
class Answer:
    """Choices by index. `pieces` are the non-empty texts of each as they came; a whole answer is one piece."""

    usage: Any = None
    pieces: dict[int, list[str]] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        return ["".join(self.pieces[index]) for index in sorted(self.pieces)]

    @property
    def text(self) -> str:
        (text,) = self.texts
        return text

    @property
    def finish_reason(self) -> str:
        (reason,) = self.finish_reasons.values()
        return reason

    @property
    def num_tokens(self) -> int:
        return int(self.usage["completion_tokens"])

    def take(self, choice: Any) -> None:
        message = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") or message.get("content") or ""
        self.pieces.setdefault(choice["index"], []).extend([text] if text else [])
        if choice["finish_reason"] is not None:
            assert choice["index"] not in self.finish_reasons, "a choice ends once"
            self.finish_reasons[choice["index"]] = choice["finish_reason"]


def path_of(body: dict[str, object]) -> str:
    return CHAT if "messages" in body else COMPLETIONS


def post(daemon: Daemon, body: dict[str, object] | bytes, path: str | None = None) -> httpx.Response:
    """Bytes are sent as they are, to /v1/completions unless a path is given."""
    if isinstance(body, bytes):
        return httpx.post(f"{daemon.url}{path or COMPLETIONS}", content=body, timeout=120)
    content = json.dumps(body).encode()  # unlike httpx's own: NaN and lone surrogates go out, escaped
    return httpx.post(f"{daemon.url}{path or path_of(body)}", content=content, timeout=120)


def ask(daemon: Daemon, *, stream: bool = False, **body: object) -> Answer:
    if not stream:
        response = post(daemon, body)
        assert response.status_code == 200, response.text
        whole = response.json()
        answer = Answer(whole["usage"])
        chunks = [whole]
    else:
        *chunks, last = events(post(daemon, body | {"stream": True, "stream_options": {"include_usage": True}}))
        answer = Answer(last["usage"])
        assert last["choices"] == []
    for chunk in chunks:
        for choice in chunk["choices"]:
            answer.take(choice)
    return answer


def events(response: httpx.Response) -> list[Any]:
    """The events of a complete stream. One per block, LF only, [DONE] last."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert b"\r" not in response.content
    *blocks, done, end = response.content.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def error_of(response: httpx.Response, status: int = 400) -> Any:
    """The `error` object of a refusal, whose shape every client relies on."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == response.headers["request-id"] != ""
    assert response.headers["x-should-retry"] == "false"
    (error,) = response.json().values()
    assert error.keys() >= {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def assert_serves(daemon: Daemon) -> None:
    """Whatever happened before: the next request is answered."""
    assert ask(daemon, **ONE_TOKEN).num_tokens == 1


def assert_unharmed(daemon: Daemon) -> None:
    """After many a bad request: healthy, nothing left behind, and nothing failed that was accepted."""
    assert httpx.get(f"{daemon.url}/health").json() == {"status": "ok"}
    status = daemon.status()
    assert status["requests"] == []
    assert status["totals"]["failed"] == 0
