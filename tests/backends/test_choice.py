"""A model's path says which backend it is for; what cannot be is told with both sides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from homeai import cli
from homeai.backends import choice
from homeai.backends.choice import backend_of, checked, model_name, unused
from homeai.config import Config, load
from homeai.errors import ConfigError, ModelLoadError
from homeai.server import launch


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "parrot-1.5b.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "Parrot-1.5B"
    path.mkdir()
    for name in ("config.json", "model-00001-of-00002.safetensors"):
        (path / name).write_bytes(b"{}")
    return path


def settings(**model: object) -> Config:
    return load(None, env={}, overrides=[(f"model.{key}", str(value)) for key, value in model.items()])


def test_file_is_for_llamacpp_and_folder_for_torch(gguf: Path, folder: Path) -> None:
    assert backend_of(gguf) == backend_of(gguf, "llamacpp") == "llamacpp"
    assert backend_of(folder) == backend_of(folder, "torch") == "torch"


def test_model_is_called_like_its_file_or_folder(gguf: Path, folder: Path) -> None:
    assert (model_name(gguf), model_name(folder)) == ("parrot-1.5b", "Parrot-1.5B")


def test_other_backend_than_the_path_is_for_is_refused_with_both_sides(gguf: Path, folder: Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"model\.backend is torch.* is a file; a GGUF file is for llamacpp, a fold"
    ):
        backend_of(gguf, "torch")
    with pytest.raises(ModelLoadError, match=r"model\.backend is llamacpp.* is a folder with config\.json and"):
        backend_of(folder, "llamacpp")


@pytest.mark.parametrize(
    ("kept", "what"),
    [
        (["config.json"], r"a folder without \*\.safetensors;"),
        (["model-00001-of-00002.safetensors"], r"a folder without config\.json;"),
        ([], r"a folder without config\.json and \*\.safetensors; a GGUF file is for llamacpp"),
    ],
)
def test_folder_says_what_it_lacks(folder: Path, kept: list[str], what: str) -> None:
    for file in [*folder.iterdir()]:
        if file.name not in kept:
            file.unlink()
    with pytest.raises(ModelLoadError, match=what):
        backend_of(folder)


def test_folder_of_a_gguf_file_is_not_the_model(gguf: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a folder; name the GGUF file in it"):
        backend_of(gguf.parent)


def test_weights_alone_are_no_model(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="name the folder that it is in"):
        backend_of(folder / "model-00001-of-00002.safetensors")


def test_default_model_is_not_for_torch() -> None:
    with pytest.raises(ConfigError, match=r"model\.path: it is not set, .*model\.backend is torch"):
        checked(settings(backend="torch"), None)
    assert checked(settings(), None) == "llamacpp"


def test_backend_that_is_not_installed_says_what_to_type(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs torch, .*not installed here: pip install 'homeai\[torch\]'"):
        checked(settings(), folder)
    with pytest.raises(ModelLoadError, match="needs torch"):
        choice.load_vocabulary(folder)


def test_missing_backend_is_one_line_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["homeai", "config", "check", "--set", f"model.path={folder}"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("not installed here: pip install 'homeai[torch]'")
    with pytest.raises(ConfigError, match="not installed here"):  # before anything is started
        launch.serve(settings(path=folder), folder)


def test_settings_without_effect_are_told() -> None:
    assert unused(settings(), "torch") == unused(settings(), "llamacpp") == []
    (told,) = unused(settings(kv_type="q8_0"), "torch")
    assert told.startswith("model.kv_type q8_0 has no effect: the torch backend keeps")
    assert unused(settings(kv_type="q8_0"), "llamacpp") == []
    (told,) = unused(settings(gpu_memory_utilization=0.5), "llamacpp")
    assert told.startswith("model.gpu_memory_utilization 0.5 has no effect: the llamacpp backend")
