"""A model of one's own to spoil, as a file or as a folder."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_of(model_path: Path, directory: Path, name: str) -> Path:
    """In `directory`: a GGUF file or a folder of safetensors, as the model is."""
    if model_path.is_dir():
        return Path(shutil.copytree(model_path, directory / name))
    return Path(shutil.copy(model_path, directory / f"{name}.gguf"))


def weights_of(model_path: Path) -> Path:
    """The one file that has them."""
    return model_path / "model.safetensors" if model_path.is_dir() else model_path
