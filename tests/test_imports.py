"""Imports go one way, and what a process does not need it does not load."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

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


# ---- torch: an extra ------------------------------------------------------------------------------------


def test_default_install_has_no_torch() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = pyproject["optional-dependencies"]
    needed = {*pyproject["dependencies"], *extras["default-model"]}
    assert not {name for name in needed if re.match("(torch|transformers|accelerate|safetensors|tokenizers)", name)}
    assert any(name.startswith("torch>=") for name in extras["torch"])
    assert "torch" not in (ROOT / "scripts" / "serve").read_text(encoding="utf-8")


def test_only_its_own_backend_imports_torch() -> None:
    importing = re.compile(r"^\s*(?:import|from) (?:torch|transformers|safetensors|tokenizers)\b", re.MULTILINE)
    files = {
        path.relative_to(ROOT / "homeai")
        for path in (ROOT / "homeai").rglob("*.py")
        if importing.search(path.read_text())
    }
    assert files, "or this rule looks for the wrong words"
    assert {path.parts[:2] for path in files} == {("backends", "torch")}


def test_tokenizer_of_a_folder_needs_no_torch() -> None:
    assert not loaded_by("homeai.backends.torch.vocab") & {"torch", "transformers", "llama_cpp"}


@pytest.mark.parametrize(
    ("child", "opener"),
    [
        ("homeai.engine.process", "homeai.backends.torch.load"),
        ("homeai.embedding.process", "homeai.backends.torch.embedder"),
    ],
)
def test_child_loads_one_backend(child: str, opener: str) -> None:
    assert not loaded_by(child) & {"torch", "llama_cpp"}
    assert "llama_cpp" not in loaded_by(opener)
