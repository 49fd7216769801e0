"""What many tests need: the default model's file, and a real daemon on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from homeai import default_model
from tests.daemon import Daemon
from tests.fim import fim_model


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def model_path(data_dir: Path) -> Path:
    """The default model, assembled once."""
    return default_model.ensure(data_dir, lambda fraction: None)


@pytest.fixture(scope="session")
def daemon(model_path: Path, data_dir: Path) -> Iterator[Daemon]:
    """One daemon with the default settings for all tests that leave it as it was."""
    with Daemon.start(model_path, data_dir) as running:
        yield running


@pytest.fixture(scope="session")
def fim_daemon(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with a model that fills gaps, for tests that leave it as it was."""
    directory = tmp_path_factory.mktemp("fim")
    settings = "scheduler.max_model_len=2048", "model.aliases=[default, GPT-4]"
    with Daemon.start(fim_model(model_path, directory), directory, *settings) as running:
        yield running


@pytest.fixture(scope="module")
def start_daemon(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons with settings of their own: `start_daemon("scheduler.max_num_seqs=1")`."""
    with ExitStack() as stack:

        def start(*settings: str) -> Daemon:
            return stack.enter_context(Daemon.start(model_path, tmp_path_factory.mktemp("daemon"), *settings))

        yield start
