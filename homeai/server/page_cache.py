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
    """All parts of the model whose first part is `path`. A file that is gone is not worth a word here."""
    try:
        for part in parts(path):
            with part.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    except OSError as error:
        log.debug("%s is not kept in memory: %s", path, error)


def parts(path: Path) -> list[Path]:
    for files in file_sets([file.name for file in path.parent.glob("*.gguf")]):
        if path.name in files.names:
            return [path.with_name(name) for name in files.names]
    return [path]
