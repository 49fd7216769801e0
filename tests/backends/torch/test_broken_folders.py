"""A folder that is not complete is one error with its reason, before the weights are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from homeai.backends.torch.load import load
from homeai.errors import ModelLoadError
from tests.backends.torch.factories import model_of
from tests.engine.factories import create_engine_config


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_of("llama", model_folder), tmp_path / "Parrot-1B"))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (cut_weights, r"model\.safetensors is cut off: it has \d+ bytes, its header says \d+"),
        (no_tokenizer, r"cannot load Parrot-1B: .*tokenizer\.json does not exist"),
    ],
)
def test_reason_is_said(folder: Path, broken: Callable[[Path], None], reason: str) -> None:
    broken(folder)
    with pytest.raises(ModelLoadError, match=reason) as error:
        load(folder, create_engine_config(folder), lambda fraction: None)
    assert "\n" not in str(error.value)
