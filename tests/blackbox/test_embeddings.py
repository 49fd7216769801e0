"""Embeddings against the daemon: the openai SDK, numbers, errors, the process that makes them.

Cases B1, E8.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import llama_cpp
import numpy as np
import openai
import pytest

from tests.blackbox.asking import error_of
from tests.daemon import Daemon, eventually

TEXTS = ["Switch off the light in the kitchen.", "The washing machine is done.", "щёчки 🙂", "a"]
LONG = "The lighthouse keeper wrote down the weather of every day. " * 14


@pytest.fixture(scope="module")
def daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Of its own: it has one process more than others."""
    return start_daemon("model.num_threads=1")


@pytest.fixture
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def embed(daemon: Daemon, path: str = "/v1/embeddings", **body: object) -> httpx.Response:
    return httpx.post(f"{daemon.url}{path}", json=body, timeout=120)


def vectors(response: httpx.Response) -> np.ndarray[Any, np.dtype[np.float64]]:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return np.array([entry["embedding"] for entry in data])


# ---- vectors ---------------------------------------------------------------------------------------------


def test_the_sdk_reads_vectors_as_it_asks_for_them(client: openai.OpenAI) -> None:
    """It asks for base64 unless told otherwise."""
    encoded = client.embeddings.create(model="default", input=TEXTS)
    plain = client.embeddings.create(model="default", input=TEXTS, encoding_format="float")
    for one, other in zip(encoded.data, plain.data, strict=True):
        assert np.allclose(one.embedding, other.embedding, atol=1e-6)
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-5)
    assert encoded.usage.prompt_tokens == encoded.usage.total_tokens > 10
    assert encoded.object == "list"


async def test_the_asynchronous_sdk_too(daemon: Daemon) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused") as client:
        answer = await client.embeddings.create(model="default", input="a", dimensions=64)
    assert len(answer.data[0].embedding) == 64


def test_vectors_are_those_of_llama_cpp(daemon: Daemon, gguf_path: Path, model_path: Path) -> None:
    """Close to them on the torch backend: there activations have 16 bits instead of 8."""
    close = 0.999 if model_path == gguf_path else 0.99
    reference = llama_cpp.Llama(
        str(gguf_path),
        embedding=True,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
        flash_attn=True,
        n_ctx=1024,
        n_batch=1024,
        n_ubatch=1024,
        n_threads=1,
        verbose=False,
    )
    ours = vectors(embed(daemon, input=[*TEXTS, LONG]))
    for vector, text in zip(ours, [*TEXTS, LONG], strict=True):
        assert vector @ np.array(reference.embed(text, normalize=True)) > close
    reference.close()


def test_a_vector_is_the_same_whatever_stands_beside_it(daemon: Daemon) -> None:
    alone = [vectors(embed(daemon, input=text))[0] for text in TEXTS]
    assert np.abs(vectors(embed(daemon, input=[LONG, *TEXTS, LONG]))[1:-1] - np.array(alone)).max() < 1e-6


def test_texts_and_their_tokens_have_the_same_vectors(daemon: Daemon) -> None:
    url = f"{daemon.url}/tokenize"
    ids = [
        httpx.post(url, json={"content": text, "add_special": True}, timeout=120).json()["tokens"] for text in TEXTS[:2]
    ]
    expected = vectors(embed(daemon, input=TEXTS[:2]))
    for response in (embed(daemon, input=ids), embed(daemon, input=[TEXTS[0], ids[1]])):
        assert np.array_equal(vectors(response), expected)
    assert np.array_equal(vectors(embed(daemon, input=ids[0])), expected[:1])


def test_texts_that_mean_the_like_lie_near_each_other(daemon: Daemon) -> None:
    light, lamp, soup = vectors(
        embed(daemon, input=["Turn the light off.", "Please switch off the lamp.", "The soup needs more salt."])
    )
    assert light @ lamp > light @ soup


def test_base64_is_little_endian_floats(daemon: Daemon) -> None:
    (entry,) = embed(daemon, input="a", encoding_format="base64").json()["data"]
    vector = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
    assert np.allclose(vector, vectors(embed(daemon, input="a"))[0], atol=1e-6)


def test_fewer_dimensions_are_the_first_again_of_length_one(daemon: Daemon) -> None:
    whole = vectors(embed(daemon, input="a"))[0]
    short = vectors(embed(daemon, input="a", dimensions=32))[0]
    assert np.allclose(short, whole[:32] / np.linalg.norm(whole[:32]), atol=1e-6)
    assert np.array_equal(vectors(embed(daemon, input="a", dimensions=640))[0], whole)


def test_whose_vectors_these_are_is_said(daemon: Daemon) -> None:
    response = embed(daemon, input="a")
    name = daemon.status()["model"]["name"]
    assert response.json()["model"] == name
    assert response.headers["x-homeai-notes"] == f"embeddings.model is not set: these come from {name}, pooling mean"


def test_the_path_without_v1_is_the_same(daemon: Daemon) -> None:
    assert np.array_equal(vectors(embed(daemon, "/embeddings", input="a")), vectors(embed(daemon, input="a")))


# ---- refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [""] * 2049}, "input"),
        ({"input": {}}, "input"),
        ({"input": 5}, "input"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [262_144]}, "input[0]"),
        ({"input": [5279552648203111001]}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", [262_144]]}, "input[1]"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": ["a", {}]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "encoding_format": 5}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 641}, "dimensions"),
        ({"input": "a", "dimensions": "64"}, "dimensions"),
        ({"input": "a", "model": 5}, "model"),
        ({"input": "a", "user": []}, "user"),
    ],
)
def test_a_wrong_field_is_refused_by_name(daemon: Daemon, body: dict[str, object], param: str) -> None:
    """E8 and its kind."""
    error = error_of(httpx.post(f"{daemon.url}/v1/embeddings", json=body, timeout=120))
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_an_empty_text_has_a_vector(daemon: Daemon) -> None:
    assert vectors(embed(daemon, input="")).shape == (1, 640)


def test_too_long_a_text_is_refused_with_both_counts(client: openai.OpenAI) -> None:
    """B1"""
    with pytest.raises(openai.BadRequestError, match=r"prompt is too long: \d+ tokens > 4096 maximum") as caught:
        client.embeddings.create(model="default", input=["a", "word " * 5000])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input[1]"


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="text-embedding-3-small"):
        client.embeddings.create(model="text-embedding-3-small", input="a")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"input": "\xff"}', b'{"input": NaN}', b'{"input": ' + b"[" * 5000])
def test_what_is_no_body_is_refused(daemon: Daemon, body: bytes) -> None:
    error_of(httpx.post(f"{daemon.url}/v1/embeddings", content=body, timeout=120))


def test_half_an_emoji_is_a_text(daemon: Daemon) -> None:
    """E6"""
    content = json.dumps({"input": "\ud83d"}).encode()
    response = httpx.post(f"{daemon.url}/v1/embeddings", content=content, timeout=120)
    assert vectors(response).shape == (1, 640)


# ---- the process that makes them -------------------------------------------------------------------------


def test_nothing_is_loaded_before_somebody_asks_and_nothing_after_a_while(
    start_daemon: Callable[..., Daemon],
) -> None:
    daemon = start_daemon("embeddings.idle_timeout_s=0.2", "model.num_threads=1")
    assert daemon.embedders == []
    expected = vectors(embed(daemon, input="a"))
    eventually(lambda: not daemon.embedders)
    assert np.array_equal(vectors(embed(daemon, input="a")), expected)


def test_killed_it_is_a_503_and_comes_back(daemon: Daemon) -> None:
    expected = vectors(embed(daemon, input="a"))
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(embed(daemon, input=[LONG] * 200)))
    thread.start()
    (embedder,) = daemon.embedders
    assert eventually(lambda: embedder.cpu_percent(0.05) > 10)
    embedder.kill()
    thread.join(120)
    (answer,) = answers
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "embedding process ended" in answer.json()["error"]["message"]
    assert np.array_equal(vectors(embed(daemon, input="a")), expected)
    assert httpx.get(f"{daemon.url}/health", timeout=120).status_code == 200


def test_a_client_that_leaves_makes_room(daemon: Daemon) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{daemon.url}/v1/embeddings", json={"input": [LONG] * 500}, timeout=httpx.Timeout(120, read=1))
    (embedder,) = daemon.embedders
    eventually(lambda: embedder.cpu_percent(0.3) < 5)


def test_generation_goes_on_beside_it(daemon: Daemon) -> None:
    thread = threading.Thread(target=embed, args=(daemon,), kwargs={"input": [LONG] * 5})
    thread.start()
    body = {"prompt": "a", "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=120)
    assert answer.json()["usage"]["completion_tokens"] == 8
    thread.join(120)


def test_a_model_of_its_own(start_daemon: Callable[..., Daemon], model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / f"small{model_path.suffix}"
    path.symlink_to(model_path)
    daemon = start_daemon(f"embeddings.model={path}", "embeddings.pooling=last", "model.num_threads=1")
    response = embed(daemon, input="a", model="small")
    assert response.json()["model"] == "small"
    assert "x-homeai-notes" not in response.headers
    assert vectors(response).shape == (1, 640)


def test_a_model_of_any_name_can_be_said_in_the_notes(start_daemon: Callable[..., Daemon]) -> None:
    """A header has no letters but Latin ones."""
    daemon = start_daemon("model.name=щёчки", "model.num_threads=1")
    for path, field in (("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt")):
        response = embed(daemon, path, model="щёчки", **{field: "a"})
        assert response.status_code == 200
        assert "come from ?????, pooling mean" in response.headers["x-homeai-notes"]


def test_a_file_that_is_no_model_is_said(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    daemon = start_daemon(f"embeddings.model={tmp_path / 'bad.gguf'}", "model.num_threads=1")
    response = embed(daemon, input="a")
    assert response.status_code == 503
    assert "not a GGUF file" in response.json()["error"]["message"]
    assert httpx.get(f"{daemon.url}/health", timeout=120).status_code == 200
