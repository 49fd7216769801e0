"""llama.vscode's requests, as its source writes them, and what it reads of the answers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.daemon import Daemon

FIM = {
    "input_prefix": "def add(a, b):\n",
    "input_suffix": "\n\nprint(add(1, 2))\n",
    "input_extra": [{"text": "x = 1\n", "time": 1700000000000, "filename": "a.py"}],
    "prompt": "    return",
    "n_predict": 16,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "n_indent": 4,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 2500,
}
PREPARATION = {
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": FIM["input_extra"],
    "prompt": "",
    "n_predict": 0,
    "samplers": [],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1,
}
EDIT = {
    "messages": [
        {"role": "system", "content": "You are an expert coder."},
        {"role": "user", "content": "Rename x to y in: x = 1"},
    ],
    "stream": False,
    "cache_prompt": True,
    "samplers": "edkypmxt",
    "temperature": 0.8,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "timings_per_token": False,
}


@pytest.fixture
def client(fim_daemon: Daemon) -> Iterator[httpx.Client]:
    with fim_daemon.client(headers={"Content-Type": "application/json", "Authorization": "Bearer x"}) as client:
        yield client


def test_a_completion_is_suggested(client: httpx.Client) -> None:
    answer = client.post("/infill", json=FIM).raise_for_status().json()
    assert isinstance(answer["content"], str)
    assert answer["generation_settings"]["n_predict"] == 16
    assert (answer["truncated"], answer["tokens_cached"] > 0) == (False, True)
    for name in ("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second"):
        assert answer["timings"][name] >= 0


def test_three_suggestions_at_once(client: httpx.Client) -> None:
    answers = client.post("/infill", json=FIM | {"n_cmpl": 3}).raise_for_status().json()
    assert [answer["index"] for answer in answers] == [0, 1, 2]


def test_the_context_is_prepared(client: httpx.Client) -> None:
    answer = client.post("/infill", json=PREPARATION).raise_for_status().json()
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)


def test_an_adapter_that_is_not_there_is_refused(client: httpx.Client) -> None:
    response = client.post("/infill", json=FIM | {"lora": [{"id": 0, "scale": 0.5}]})
    assert response.status_code == 400
    assert "lora" in response.json()["error"]["message"]


def test_text_is_edited_by_chat(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=EDIT | {"max_tokens": 8}).raise_for_status().json()
    assert isinstance(answer["choices"][0]["message"]["content"], str)
    warm = EDIT | {"n_predict": 0, "samplers": [], "t_max_prompt_ms": 500, "t_max_predict_ms": 1}
    assert client.post("/v1/chat/completions", json=warm).raise_for_status().json()["choices"][0]["finish_reason"]


def test_embeddings_by_the_name_that_it_has_built_in(client: httpx.Client) -> None:
    """Where the owner lists it under model.aliases."""
    body = {"input": "def add(a, b)", "model": "GPT-4", "encoding_format": "float"}
    answer = client.post("/v1/embeddings", json=body).raise_for_status().json()
    (entry,) = answer["data"]
    assert len(entry["embedding"]) == 640
    assert (answer["object"], entry["object"], entry["index"]) == ("list", "embedding", 0)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0


def test_it_knows_a_llama_cpp_server_and_its_context(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").raise_for_status().json()["data"]
    assert model["owned_by"] == "llamacpp" or isinstance(model["meta"], dict)
    params = {"model": model["id"], "autoload": "false"}
    props = client.get("/props", params=params).raise_for_status().json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert client.get("/health").raise_for_status().json() == {"status": "ok"}


def test_it_counts_the_tokens_of_a_chat(client: httpx.Client) -> None:
    prompt = client.post("/apply-template", json={"messages": EDIT["messages"]}).raise_for_status().json()["prompt"]
    body = {"content": prompt, "add_special": True, "parse_special": True}
    tokens = client.post("/tokenize", json=body).raise_for_status().json()["tokens"]
    answer = client.post("/v1/chat/completions", json=EDIT | {"max_tokens": 1}).raise_for_status().json()
    assert len(tokens) == answer["usage"]["prompt_tokens"]


def test_too_long_a_chat_is_told_so_that_it_can_shorten_it(client: httpx.Client) -> None:
    message = {"role": "user", "content": "word " * 3000}
    response = client.post("/v1/chat/completions", json={"messages": [message]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded" or error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"]
