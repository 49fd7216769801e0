"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_path() -> Path:
    from homeai import default_model
    import os

    return default_model.ensure(Path(os.environ.get("HOMEAI_TEST_CACHE", "/tmp/prep/cache")), lambda f: None)
