"""What many tests need: the default model's file, and a real daemon on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from homeai import default_model
from tests.daemon import Daemon
from tests.fim import fim_model
from tests.torch_model import torch_model


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "What the daemons of tests/blackbox compute with; torch serves the same model as a folder of safetensors."
    parser.addoption("--backend", choices=("llamacpp", "torch"), default="llamacpp", help=help)


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the tests and of all that they start."""
    with pytest.MonkeyPatch.context() as patch:
        # they speak plain HTTP, and every client of httpx would read this machine's certificates first, for 20 ms
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        if "PYTEST_XDIST_WORKER" in os.environ:  # the threads of an engine would wait for those of the others'
            patch.setenv("HOMEAI_MODEL__NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def gguf_path(data_dir: Path) -> Path:
    """The default model, assembled once."""
    return default_model.ensure(data_dir, lambda fraction: None)


@pytest.fixture(scope="session")
def model_path(gguf_path: Path) -> Path:
    """The default model, as it is served."""
    return gguf_path


@pytest.fixture(scope="session")
def torch_path(gguf_path: Path, data_dir: Path) -> Path:
    """The default model as a folder of safetensors, converted once."""
    return torch_model(gguf_path, data_dir)


@pytest.fixture(scope="session")
def fim_model_path(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that fills gaps, made once."""
    return fim_model(gguf_path, tmp_path_factory.mktemp("fim-model"))


@pytest.fixture(scope="session")
def daemon(model_path: Path, data_dir: Path) -> Iterator[Daemon]:
    """One daemon with the default settings for all tests that leave it as it was."""
    with Daemon.start(model_path, data_dir) as running:
        yield running


@pytest.fixture(scope="session")
def fim_daemon(fim_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with a model that fills gaps, for tests that leave it as it was."""
    settings = "scheduler.max_model_len=2048", "model.aliases=[default, GPT-4]"
    with Daemon.start(fim_model_path, tmp_path_factory.mktemp("fim"), *settings) as running:
        yield running


@pytest.fixture(scope="module")
def _ends() -> Iterator[list[ExitStack]]:
    """Of what runs: the module's, and above it the running test's."""
    with ExitStack() as of_module:
        yield [of_module]


@pytest.fixture(scope="module")
def start_daemon(
    model_path: Path, tmp_path_factory: pytest.TempPathFactory, _ends: list[ExitStack]
) -> Callable[..., Daemon]:
    """Starts daemons with settings of their own: `start_daemon("scheduler.max_num_seqs=1")`.

    One that a test starts ends with the test, one of a module's fixture with the module.
    """

    def start(*settings: str) -> Daemon:
        return _ends[-1].enter_context(Daemon.start(model_path, tmp_path_factory.mktemp("daemon"), *settings))

    return start


@pytest.fixture(autouse=True)
def _end_of_test(request: pytest.FixtureRequest) -> Iterator[None]:
    if "start_daemon" not in request.fixturenames:
        yield
        return
    ends: list[ExitStack] = request.getfixturevalue("_ends")
    with ExitStack() as of_test:
        ends.append(of_test)
        yield
        ends.remove(of_test)
