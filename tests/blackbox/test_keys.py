"""API keys and what they may use; who needs none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.daemon import Daemon, eventually
from tests.streaming import CHAT, COMPLETIONS, document, exactly

GUESTS = "sources=[{name: guests, class: background, match: {address: [127.0.0.1]}}]"


@pytest.fixture(scope="module")
def locked(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("server.auth=keys")


def ask(daemon: Daemon, key: str | None, path: str = COMPLETIONS, **fields: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = exactly(1) | fields if path == COMPLETIONS else fields
    return httpx.post(f"{daemon.url}{path}", json=body, headers=headers, timeout=120)


def test_key_is_found_where_clients_put_it(locked: Daemon) -> None:
    key = locked.keys("add", "places")
    for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}, {"api-key": key}):
        assert httpx.get(f"{locked.url}/v1/models", headers=headers).status_code == 200


def test_key_may_ask_so_often_a_minute(locked: Daemon) -> None:
    key = locked.keys("add", "often", "--requests-per-minute", "2")
    assert [ask(locked, key).status_code for _ in range(3)] == [200, 200, 429]
    answer = ask(locked, key)
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert ask(locked, locked.keys("add", "another")).status_code == 200
    rows = eventually(lambda: (found := locked.ledger_rows("often"))[3:] and found)
    assert [(row["status"], row["reject_reason"]) for row in rows[2:]] == [(429, "rate_limit_exceeded")] * 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [5]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_what_is_only_tokenised_counts_too(locked: Daemon, path: str, body: dict[str, object]) -> None:
    key = locked.keys("add", f"once{path.replace('/', '-')}", "--requests-per-minute", "1")
    headers = {"Authorization": f"Bearer {key}"}
    answers = [httpx.post(f"{locked.url}{path}", json=body, headers=headers, timeout=60) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


@pytest.mark.parametrize(("num_prompt_tokens", "num_output_tokens"), [(10, 20), (31, 1)])
def test_prompt_and_answer_fit_into_the_context_of_a_key(
    locked: Daemon, num_prompt_tokens: int, num_output_tokens: int
) -> None:
    key = locked.keys("add", f"context-{num_prompt_tokens}", "--max-context", "32")
    body = {"prompt": document(num_prompt_tokens), "max_tokens": 20}
    answer = ask(locked, key, **body).json()
    assert answer["usage"]["completion_tokens"] == num_output_tokens
    assert answer["choices"][0]["finish_reason"] == "length"


def test_longer_prompt_is_refused_with_both_numbers(locked: Daemon) -> None:
    key = locked.keys("add", "short", "--max-context", "32")
    for path, body in (
        (COMPLETIONS, {"prompt": document(40)}),
        (CHAT, {"messages": [{"role": "user", "content": "a " * 50}]}),
    ):
        answer = ask(locked, key, path, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "tokens > 31 maximum" in answer.json()["error"]["message"]


def test_tokens_of_a_day_are_used_up_and_a_restart_gives_none_back(model_path: Path, tmp_path: Path) -> None:
    with Daemon.start(model_path, tmp_path, "server.auth=keys") as daemon:
        key = daemon.keys("add", "daily", "--tokens-per-day", "30")
        assert ask(daemon, key, prompt=document(20), max_tokens=5).status_code == 200
        assert ask(daemon, key, prompt=document(20), max_tokens=5).status_code == 200
        answer = ask(daemon, key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")
        assert "50 of 30" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        eventually(lambda: daemon.ledger_rows("daily")[2:])
    with Daemon.start(model_path, tmp_path, "server.auth=keys") as daemon:
        assert ask(daemon, key).status_code == 429
        assert {row["key"] for row in daemon.ledger_rows("daily")[:2]} == {"daily"}


def test_keyless_subnet_is_a_source_without_a_key(start_daemon: Callable[..., Daemon]) -> None:
    """Also with a key that is none, as clients send that cannot do without."""
    daemon = start_daemon("server.auth=keys", "server.keyless=[127.0.0.1]", GUESTS)
    for key in (None, "DUMMY_KEY"):
        assert ask(daemon, key, max_tokens=1).status_code == 200
    rows = eventually(lambda: (found := daemon.ledger_rows("guests"))[1:] and found)
    assert {row["fairness_class"] for row in rows} == {"background"}
    forwarded = {"X-Forwarded-For": "192.168.1.7"}  # by a proxy on this machine
    assert httpx.get(f"{daemon.url}/v1/models", headers=forwarded).status_code == 401


def test_request_that_is_forwarded_is_not_of_this_machine(daemon: Daemon) -> None:
    """Else a proxy here would open the door to the whole network."""
    for forwarded in ("192.168.1.7", "127.0.0.1, 192.168.1.7", "8.8.8.8", "nonsense"):
        answer = httpx.get(f"{daemon.url}/v1/models", headers={"X-Forwarded-For": forwarded})
        assert answer.status_code == 401, forwarded
    assert httpx.get(f"{daemon.url}/v1/models").status_code == 200
