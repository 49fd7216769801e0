"""Imports go one way, and what a process does not need it does not load."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

PURE = ["homeai.scheduling.scheduler", "homeai.engine.engine", "homeai.backends.simulated.runner"]


def loaded_by(*modules: str) -> set[str]:
    """All modules that a fresh interpreter has loaded after importing these."""
    imports = "".join(f"import {module}; " for module in modules)
    command = [sys.executable, "-c", f"{imports}import sys; print(*sys.modules, sep='\\n')"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "unwanted", ["torch", "llama_cpp", "fastapi", "sqlite_utils", "numpy", "uvicorn", "pydantic", "homeai.server"]
)
def test_scheduler_engine_and_simulator_are_light(unwanted: str, pure: set[str]) -> None:
    assert unwanted not in pure


@pytest.fixture(scope="module")
def pure() -> set[str]:
    return loaded_by(*PURE)


def test_scheduling_stands_on_the_ground_floor_only(pure: set[str]) -> None:
    ours = {name for name in loaded_by("homeai.scheduling.scheduler") if name.startswith("homeai.")}
    packages = {name for name in ours if not name.startswith("homeai.scheduling")}
    assert packages == {"homeai.policy", "homeai.request"}


def test_front_end_loads_neither_scheduler_nor_runner() -> None:
    loaded = loaded_by("homeai.server.app", "homeai.server.daemon")
    assert not {name for name in loaded if name.startswith(("homeai.scheduling", "homeai.engine"))}
    assert not loaded & {"homeai.backends.llamacpp.runner", "homeai.backends.llamacpp.embedder"}
    assert "torch" not in loaded


def test_command_line_starts_without_the_server_and_the_model() -> None:
    assert not loaded_by("homeai.cli") & {"fastapi", "llama_cpp", "sqlite_utils", "uvicorn", "numpy", "torch"}


def test_engine_child_does_not_load_the_web() -> None:
    loaded = loaded_by("homeai.engine.process", "homeai.backends.llamacpp.runner")
    assert not loaded & {"fastapi", "uvicorn", "sqlite_utils", "pydantic", "httpx", "torch"}


def test_embedding_child_does_not_load_the_web_or_the_engine() -> None:
    loaded = loaded_by("homeai.embedding.process", "homeai.backends.llamacpp.embedder")
    assert not loaded & {"fastapi", "uvicorn", "sqlite_utils", "pydantic", "httpx", "torch"}
    assert not {name for name in loaded if name.startswith(("homeai.scheduling", "homeai.engine", "homeai.server"))}


def test_torch_is_not_installed() -> None:
    assert importlib.util.find_spec("torch") is None
