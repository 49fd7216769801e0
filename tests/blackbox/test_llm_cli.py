"""The `llm` command works against the daemon's /v1: models from its own YAML file, streams, schemas, tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import PATIENCE_S, Daemon

pytest.importorskip("llm")


@pytest.fixture(scope="module")
def llm_home(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("llm")
    (home / "extra-openai-models.yaml").write_text(
        f"- model_id: home\n  model_name: default\n  api_base: {daemon.url}/v1\n"
        "  supports_schema: true\n  supports_tools: true\n"
        f"- model_id: home-text\n  model_name: default\n  api_base: {daemon.url}/v1\n  completion: true\n"
    )
    return home


def llm(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Without a warning of its own making, and without what the tests' environment may hold."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    env |= {"LLM_USER_PATH": str(home)}
    command = [sys.executable, "-m", "llm", *args]
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )


def answer(home: Path, *args: str) -> str:
    done = llm(home, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("model", ["home", "home-text"])
def test_stream_is_the_whole_answer(llm_home: Path, model: str) -> None:
    options = ("-m", model, "-o", "temperature", "0", "-o", "max_tokens", "8", "Say hello.")
    streamed = answer(llm_home, *options)
    assert streamed
    assert answer(llm_home, "--no-stream", *options) == streamed


@pytest.mark.parametrize("how", [(), ("--no-stream",)], ids=["stream", "whole"])
def test_answer_fits_its_schema(llm_home: Path, how: tuple[str, ...]) -> None:
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    }
    told = answer(llm_home, "-m", "home", *how, "--schema", json.dumps(schema), "-o", "max_tokens", "64", "Is it on?")
    assert json.loads(told).keys() == {"on"}


def test_tools_may_be_offered(llm_home: Path) -> None:
    done = llm(llm_home, "-m", "home", "-T", "llm_version", "-o", "max_tokens", "8", "Say hello.")
    assert done.returncode == 0, done.stderr


def test_usage_is_read_from_whole_answers_and_streams(llm_home: Path) -> None:
    for how in ((), ("--no-stream",)):
        done = llm(llm_home, "-m", "home", *how, "-u", "-o", "max_tokens", "3", "Say hello.")
        assert "3 output" in done.stderr


def test_mistake_is_told(llm_home: Path) -> None:
    done = llm(llm_home, "-m", "home", "-o", "temperature", "2", "-o", "top_p", "0.5", "word " * 20_000)
    assert done.returncode != 0
    assert "too long" in done.stderr
