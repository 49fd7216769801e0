"""Tests of the torch backend, skipped where torch is not installed; tiny random models for them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS = ("torch", "transformers", "safetensors", "tokenizers")
MISSING = [name for name in NEEDS if find_spec(name) is None]


class SkippedModule(pytest.Module):
    def collect(self) -> Iterable[pytest.Item]:
        pytest.skip(f"not installed: {', '.join(MISSING)}")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return SkippedModule.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny models of all families lie, each made when it is first asked for."""
    return tmp_path_factory.mktemp("models")
