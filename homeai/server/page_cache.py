"""Keeping a model's file in memory while the model is away, so that it is back in a moment.

The system reads what is missing, whenever the disk has nothing better to do, and drops it again when programs need
the room: nobody is disturbed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from homeai.gguf_files import file_sets

log = logging.getLogger("homeai.residency")


def keep_warm(path: Path) -> None:
    """All weights of the model at `path`, its first part or its folder. What is gone is not worth a word here."""
    try:
        for part in parts(path):
            with part.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    except OSError as error:
        log.debug("%s is not kept in memory: %s", path, error)


def parts(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    for files in file_sets([file.name for file in path.parent.glob("*.gguf")]):
        if path.name in files.names:
            return [path.with_name(name) for name in files.names]
    return [path]
