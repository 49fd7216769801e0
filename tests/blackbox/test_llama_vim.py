"""llama.vim's requests, as its source writes them, and what it reads of the answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.daemon import Daemon

RESPONSE_FIELDS = [
    "content",
    "timings/prompt_n",
    "timings/prompt_ms",
    "timings/prompt_per_token_ms",
    "timings/prompt_per_second",
    "timings/predicted_n",
    "timings/predicted_ms",
    "timings/predicted_per_token_ms",
    "timings/predicted_per_second",
    "truncated",
    "tokens_cached",
]
PREFIX = "".join(f"def add_{i}(a, b):\n    return a + b + {i}\n\n\n" for i in range(40))


def extra(number: int) -> dict[str, object]:
    lines = "".join(f"CONSTANT_{i} = {i * number}\n" for i in range(20))
    return {"text": lines, "time": [number, 0], "filename": f"lib/constants_{number}.py"}


def fim(**fields: object) -> dict[str, object]:
    """What is sent when the cursor stands in a line."""
    return {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "input_suffix": "\n\n\nprint(add_1(2, 3))\n",
        "input_extra": [extra(1), extra(2)],
        "prompt": "def add_40(a, b):",
        "n_predict": 24,
        "stop": [],
        "n_indent": 0,
        "top_k": 40,
        "top_p": 0.90,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": RESPONSE_FIELDS,
        **fields,
    }


def warm_up(*extras: dict[str, object]) -> dict[str, object]:
    """What is sent when the cursor has moved on: only the context."""
    return {
        "id_slot": 0,
        "input_prefix": "",
        "input_suffix": "",
        "input_extra": list(extras),
        "prompt": "",
        "n_predict": 0,
        "temperature": 0.0,
        "stream": False,
        "samplers": [],
        "cache_prompt": True,
        "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1,
        "response_fields": [""],
    }


def post(daemon: Daemon, body: dict[str, object]) -> httpx.Response:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
    return httpx.post(f"{daemon.url}/infill", json=body, headers=headers, timeout=120)


def infill(daemon: Daemon, body: dict[str, object]) -> Any:
    response = post(daemon, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_suggestion_has_all_that_the_editor_shows(fim_daemon: Daemon) -> None:
    answer = infill(fim_daemon, fim())
    assert list(answer) == RESPONSE_FIELDS
    assert isinstance(answer["content"], str)
    assert answer["timings/predicted_n"] <= 24
    assert answer["tokens_cached"] >= answer["timings/prompt_n"]
    assert answer["truncated"] is False


def test_a_warm_up_answers_nothing_and_spares_the_next_one_its_context(fim_daemon: Daemon) -> None:
    context = [extra(3), extra(4), extra(5)]
    assert infill(fim_daemon, warm_up(*context)) == {}
    body = fim(input_extra=context, input_prefix="x = 1\n", input_suffix="\n", n_predict=1)
    answer = infill(fim_daemon, body | {"response_fields": ["timings/cache_n", "timings/prompt_n"]})
    assert answer["timings/cache_n"] > 300
    assert answer["timings/prompt_n"] < 100


def test_the_next_key_goes_on_from_the_same_context(fim_daemon: Daemon) -> None:
    fields = {"response_fields": ["timings/cache_n", "timings/prompt_n"], "n_predict": 1}
    infill(fim_daemon, fim(**fields))
    answer = infill(fim_daemon, fim(**fields, prompt="def add_40(a, b): r"))
    assert answer["timings/cache_n"] > 10 * answer["timings/prompt_n"]


def test_what_is_inserted_is_indented_like_its_line(fim_daemon: Daemon) -> None:
    answer = infill(fim_daemon, fim(prompt="    return a", n_indent=4, n_predict=64, t_max_predict_ms=60_000))
    assert all(not line or line.startswith("    ") for line in answer["content"].split("\n")[1:])


def test_sampler_that_is_not_done_is_said(fim_daemon: Daemon) -> None:
    assert post(fim_daemon, fim(n_predict=1)).headers["x-homeai-notes"] == "not done, of samplers: infill"


def test_a_file_that_is_too_long_is_cut_around_the_cursor_and_said(fim_daemon: Daemon) -> None:
    """B1: nothing is left out silently."""
    long = PREFIX * 10
    response = post(fim_daemon, fim(input_prefix=long, input_suffix=long, n_predict=4))
    assert response.status_code == 200, response.text
    assert response.json()["truncated"] is True
    notes = response.headers["x-homeai-notes"]
    for name in ("input_prefix", "input_suffix", "input_extra"):
        assert f"{name} is too long for the context" in notes


def test_a_stream_of_a_suggestion_ends_with_its_fields(fim_daemon: Daemon) -> None:
    *_parts, last, end = post(fim_daemon, fim(stream=True, n_predict=4)).text.split("\n\n")
    assert end == ""
    assert '"timings/predicted_n":' in last


@pytest.mark.parametrize("body", [{"n_predict": "24"}, {"input_extra": [{"filename": "a"}]}, {"prompt": 5}])
def test_a_wrong_field_is_refused_by_name(fim_daemon: Daemon, body: dict[str, object]) -> None:
    response = post(fim_daemon, fim() | body)
    assert response.status_code == 400
    assert next(iter(body)) in response.json()["error"]["message"]
