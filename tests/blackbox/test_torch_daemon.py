"""A folder of safetensors behind the same doors: the daemon on the torch backend, whatever `--backend` says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.blackbox.asking import ask, post
from tests.daemon import Daemon, eventually_async
from tests.streaming import CHAT, Stream, document, exactly

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

NUM_CELLS = 512
SETTINGS = (
    f"scheduler.kv_cells={NUM_CELLS}",
    "scheduler.max_num_seqs=4",
    "scheduler.host_cache_mb=0",
    "model.kv_type=q8_0",  # without effect
    "residency.max_restarts=10",
)
STORY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def daemon(torch_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon.start(torch_path, tmp_path_factory.mktemp("torch"), *SETTINGS) as running:
        yield running


def libraries(process: psutil.Process) -> set[str]:
    return {Path(region.path).name for region in process.memory_maps()}


def test_folder_is_served_and_said(daemon: Daemon, torch_path: Path) -> None:
    status = daemon.status()
    assert (status["state"], status["model"]["file"], status["model"]["name"]) == (
        "resident",
        torch_path.name,
        torch_path.name,
    )
    assert any(note.startswith("model.kv_type q8_0 has no effect: the torch backend") for note in status["notes"])
    with daemon.client() as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert model["id"] == torch_path.name
        shown = client.post("/api/show", json={"model": torch_path.name}).json()
    details = shown["details"]
    assert (details["format"], details["quantization_level"]) == ("safetensors", "BF16")
    assert shown["model_info"]["general.parameter_count"] == 268_098_176


def test_each_process_loads_what_it_needs(daemon: Daemon) -> None:
    (engine,) = daemon.engines
    assert any(name.startswith("libtorch") for name in libraries(engine))
    assert not any(name.startswith("libllama") for name in libraries(engine))
    assert not any(name.startswith("libtorch") for name in libraries(psutil.Process(daemon.process.pid)))


def test_whole_answer_is_the_streamed_one(daemon: Daemon) -> None:
    whole = ask(daemon, **STORY)
    assert whole.num_tokens == 24
    assert len(whole.text.split()) > 8
    assert ask(daemon, stream=True, **STORY).text == whole.text


def test_stop_string_ends_the_answer_before_it(daemon: Daemon) -> None:
    text = ask(daemon, **STORY).text
    word = text.split()[4]
    answer = ask(daemon, stop=[word], **STORY)
    assert answer.finish_reason == "stop"
    assert answer.text == text[: text.index(word)]


def test_log_probabilities_are_of_the_tokens_that_spell_the_text(daemon: Daemon) -> None:
    (choice,) = post(daemon, STORY | {"logprobs": 2}).json()["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    for drawn, best in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
        assert drawn == max(best.values()) <= 0


def test_answer_follows_its_schema(daemon: Daemon) -> None:
    schema = {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
        "additionalProperties": False,
    }
    answer = ask(
        daemon,
        messages=[{"role": "user", "content": "Turn on the kitchen light."}],
        response_format={"type": "json_schema", "json_schema": {"name": "light", "schema": schema}},
        max_tokens=60,
    )
    light = json.loads(answer.text)
    assert light.keys() == {"room", "on"}
    assert light["room"] in ("kitchen", "hall")


def test_forced_call_names_the_tool_and_its_arguments(daemon: Daemon) -> None:
    parameters = {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "hall"]}},
        "required": ["room"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "light_on", "parameters": parameters}}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Light in the hall, please."}],
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 80,
    }
    (choice,) = post(daemon, body, CHAT).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "light_on"
    assert json.loads(call["function"]["arguments"])["room"] in ("kitchen", "hall")


def test_control_tokens_in_a_users_text_are_text(daemon: Daemon) -> None:
    with daemon.client() as client:
        told = client.post("/tokenize", json={"content": "a<eos>", "parse_special": False}).json()["tokens"]
        meant = client.post("/tokenize", json={"content": "a<eos>", "parse_special": True}).json()["tokens"]
        assert meant[-1] == 1
        assert 1 not in told
        assert client.post("/detokenize", json={"tokens": told}).json()["content"] == "a<eos>"


def test_embeddings_come_from_the_folder(daemon: Daemon, torch_path: Path) -> None:
    response = post(daemon, {"input": ["a", "b"]}, "/v1/embeddings")
    assert response.json()["model"] == torch_path.name
    assert [len(entry["embedding"]) for entry in response.json()["data"]] == [640, 640]
    assert response.headers["x-homeai-notes"].endswith(f"these come from {torch_path.name}, pooling mean")
    (embedder,) = daemon.embedders
    assert not any(name.startswith("libllama") for name in libraries(embedder))


async def test_requests_that_do_not_fit_together_are_parked_and_all_end(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        bodies = [exactly(30, document(150 + number), cache_prompt=False) for number in range(4)]
        streams = [Stream(client, body, source=f"parked-{number}") for number, body in enumerate(bodies)]
        for stream in streams:
            assert ((await stream.ended()).num_tokens, stream.errors) == (30, [])
    rows = [row for number in range(4) for row in daemon.ledger_rows(f"parked-{number}")]
    assert sum(row["num_preemptions"] for row in rows) > 0
    assert daemon.status()["requests"] == []


async def test_streams_go_on_in_the_next_engine(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        streams = [Stream(client, exactly(30, f"Story number {number}: once")) for number in range(2)]
        for stream in streams:
            await stream.begun()
        (engine,) = daemon.engines
        engine.kill()
        ended = await asyncio.gather(*(stream.ended() for stream in streams))
        assert [(stream.num_tokens, stream.errors) for stream in ended] == [(30, [])] * 2
        await eventually_async(lambda: daemon.status()["state"] == "resident")
    assert [child.pid for child in daemon.engines] != [engine.pid]


# ---- what cannot be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("llamacpp", "is a folder with config.json and *.safetensors; a GGUF file is for llamacpp"),
        ("torch", "is a file; a GGUF file is for llamacpp"),
    ],
)
def test_wrong_backend_is_one_line_before_anything_starts(
    gguf_path: Path, torch_path: Path, wanted: str, complaint: str
) -> None:
    path = torch_path if wanted == "llamacpp" else gguf_path
    for command in (["config", "check", "--set", f"model.path={path}"], ["serve", "--model", str(path)]):
        command = [sys.executable, "-m", "homeai", *command, "--set", f"model.backend={wanted}"]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert outcome.returncode == 2
        (line,) = outcome.stderr.splitlines()
        assert line.startswith("homeai: model.path: ")
        assert complaint in line
