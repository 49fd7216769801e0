"""Who is asking, and what is kept of it: sources and classes, keys, the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.daemon import Daemon, eventually
from tests.streaming import CHAT, COMPLETIONS, Connection, exactly

SOURCES = """sources=[
  {name: kitchen, class: voice, match: {header: [wyoming-kitchen]}},
  {name: desk, class: coding, match: {user: [alice]}},
  {name: robot, class: background, match: {key: [robot]}},
  {name: lamp, class: voice, match: {user: [lamp]}},
]"""
SECRET = "xyzzyplugh"


@pytest.fixture(scope="module")
def house(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("scheduler.default_class=interactive", SOURCES)


@pytest.fixture(scope="module")
def locked(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("server.auth=keys", SOURCES)


def ask(daemon: Daemon, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    with daemon.client() as client:
        return client.post(COMPLETIONS, json=exactly(1) | fields, headers=headers)


def new_row(daemon: Daemon, source: str, act: Callable[[], object]) -> dict[str, Any]:
    """The ledger's row of what `act` asked."""
    count = len(daemon.ledger_rows(source))
    act()
    (row,) = eventually(lambda: daemon.ledger_rows(source)[count:])
    return row


# ---- sources and classes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "user", "source", "fairness_class"),
    [
        (None, None, "default", "interactive"),
        ("kitchen", None, "kitchen", "voice"),
        ("wyoming-kitchen", None, "kitchen", "voice"),
        ("stranger", None, "stranger", "interactive"),
        (None, "alice", "desk", "coding"),
        (None, "bob", "bob", "interactive"),
        (None, "lamp", "lamp", "interactive"),  # anybody can say so: no class above the default one
        (None, "kitchen", "default", "interactive"),  # nor a source that does not list it
        ("kitchen", "alice", "kitchen", "voice"),
    ],
)
def test_header_then_user_field_say_who_asks(
    house: Daemon, header: str | None, user: str | None, source: str, fairness_class: str
) -> None:
    headers = {"X-HomeAI-Source": header} if header else {}
    row = new_row(house, source, lambda: ask(house, headers, user=user))
    assert (row["fairness_class"], row["status"]) == (fairness_class, 200)


async def test_status_shows_source_and_class_of_a_live_request(house: Daemon) -> None:
    asking = await Connection.ask(house.url, exactly(3000), source="wyoming-kitchen")
    request = eventually(lambda: house.live("kitchen"))
    assert request["class"] == "voice"
    classes = {entry["name"]: entry["running"] + entry["waiting"] for entry in house.status()["classes"]}
    assert classes == {"voice": 1, "interactive": 0, "coding": 0, "background": 0}
    await asking.leave()
    eventually(lambda: not house.status()["requests"])


# ---- keys ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/models", "/api/status", "/metrics"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"X-HomeAI-Source": "kitchen"}])
def test_without_a_key_nothing_is_told(locked: Daemon, path: str, headers: dict[str, str]) -> None:
    with locked.client() as client:
        method = "POST" if path in (COMPLETIONS, CHAT) else "GET"
        answer = client.request(method, path, json={"prompt": "Hi"} if method == "POST" else None, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/"])
def test_health_and_the_page_need_no_key(locked: Daemon, path: str) -> None:
    with locked.client() as client:
        assert client.get(path).is_success


def test_key_counts_from_when_it_is_added_until_it_is_revoked(locked: Daemon) -> None:
    key = locked.keys("add", "tablet", "--class", "voice")
    for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
        row = new_row(locked, "tablet", lambda headers=headers: ask(locked, headers))
        assert (row["fairness_class"], row["status"]) == ("voice", 200)
    assert "tablet" in locked.keys("list")
    locked.keys("revoke", "tablet")
    assert ask(locked, {"Authorization": f"Bearer {key}"}).status_code == 401


def test_the_configured_class_of_a_key_counts(locked: Daemon) -> None:
    headers = {"Authorization": f"Bearer {locked.keys('add', 'robot')}"}
    row = new_row(locked, "robot", lambda: ask(locked, headers, user="alice"))
    assert row["fairness_class"] == "background"


def test_a_key_is_kept_nowhere(locked: Daemon) -> None:
    key = locked.keys("add", "phone")
    assert ask(locked, {"Authorization": f"Bearer {key}"}).is_success
    assert key.encode() not in stored(locked)
    assert not any(key in line for line in locked.log)


# ---- the ledger ----------------------------------------------------------------------------------------


def stored(daemon: Daemon) -> bytes:
    """The ledger as it lies on disk, with what SQLite has not merged yet."""
    return b"".join(path.read_bytes() for path in daemon.data_dir.glob("ledger.db*"))


def test_finished_request_has_its_counts_in_the_ledger(house: Daemon) -> None:
    headers = {"X-HomeAI-Source": "counts"}
    row = new_row(house, "counts", lambda: ask(house, headers, prompt=[2, 10, 20, 30], max_tokens=5))
    expected = {
        "api": COMPLETIONS,
        "num_prompt_tokens": 4,
        "num_output_tokens": 5,
        "status": 200,
        "finish_reason": "length",
        "reject_reason": None,
        "num_preemptions": 0,
    }
    assert expected.items() <= row.items()
    assert row["model"] == house.status()["model"]["name"]
    assert 0 <= row["queue_s"] <= row["ttft_s"] <= row["e2e_s"]


def test_answer_cut_at_a_stop_string_counts_to_it(house: Daemon) -> None:
    headers = {"X-HomeAI-Source": "stops"}
    prompt = "1 2 3 4 5 6 7 8 9 10 11 12"
    row = new_row(house, "stops", lambda: ask(house, headers, prompt=prompt, stop="17", max_tokens=60))
    assert (row["status"], row["finish_reason"]) == (200, "stop")
    assert 0 < row["num_output_tokens"] < 60


def test_usage_and_ledger_count_alike_wherever_an_answer_ends(house: Daemon) -> None:
    """At the stop string, at the limit, and at both in one token."""
    for max_tokens in range(1, 9):
        fields = {"prompt": "A B C D E F G H I J K", "stop": "N O", "max_tokens": max_tokens, "n": 2}
        with house.client(headers={"X-HomeAI-Source": f"cut-{max_tokens}"}) as client:
            answer = client.post(COMPLETIONS, json=exactly(1) | fields).json()
        rows = eventually(lambda n=max_tokens: (found := house.ledger_rows(f"cut-{n}"))[1:] and found)
        assert sum(row["num_output_tokens"] for row in rows) == answer["usage"]["completion_tokens"]
        assert [row["finish_reason"] for row in rows] == [choice["finish_reason"] for choice in answer["choices"]]


async def test_aborted_request_is_in_the_ledger(house: Daemon) -> None:
    asking = await Connection.ask(house.url, exactly(3000, stream=True), source="aborts")
    eventually(lambda: (seen := house.live("aborts")) and seen["num_output_tokens"])
    await asking.leave()
    (row,) = eventually(lambda: house.ledger_rows("aborts"))
    assert (row["status"], row["finish_reason"]) == (499, "abort")
    assert row["num_output_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"temperature": 9}, 400, "invalid_request_error"),
        ({"prompt": [-1]}, 400, "invalid_request_error"),
        ({"model": "gpt-17"}, 404, "model_not_found"),
        ({"prompt": [5] * 40_000}, 400, "context_length_exceeded"),
    ],
)
def test_rejected_request_is_in_the_ledger(house: Daemon, fields: dict[str, object], status: int, reason: str) -> None:
    row = new_row(house, "rejected", lambda: ask(house, {"X-HomeAI-Source": "rejected"}, **fields))
    assert (row["status"], row["reject_reason"], row["finish_reason"]) == (status, reason, None)
    assert row["num_output_tokens"] == 0


def test_request_without_a_key_is_in_the_ledger(locked: Daemon) -> None:
    row = new_row(locked, "kitchen", lambda: ask(locked, {"X-HomeAI-Source": "kitchen"}))
    assert (row["status"], row["reject_reason"]) == (401, "invalid_api_key")


def test_no_text_is_kept(house: Daemon) -> None:
    """Neither of what was asked nor of what was answered nor of what was refused, in any file or in the log."""
    messages = [{"role": "system", "content": SECRET}, {"role": "user", "content": f"Repeat: {SECRET}. " * 30}]
    with house.client() as client:
        assert client.post(CHAT, json={"messages": messages, "max_tokens": 30, "stop": [SECRET * 2]}).is_success
        for body in ({"messages": messages, "top_p": 7}, {"messages": [*messages, {"role": SECRET, "content": "."}]}):
            assert client.post(CHAT, json=body).status_code == 400
        assert client.post(COMPLETIONS, content=f'{{"prompt": "{SECRET}').status_code == 400
    row = new_row(house, "last", lambda: ask(house, {"X-HomeAI-Source": "last"}, prompt=f"{SECRET} " * 100))
    assert row["prefix_hashes"] != "[]"
    assert b"prefix_hashes" in stored(house)
    assert SECRET.encode() not in stored(house)
    assert not any(SECRET in line for line in house.log)
