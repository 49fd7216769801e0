"""The bytes of uploaded files, one file each. A file is there whole, or not at all, also after a power cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Final

UNFINISHED: Final = ".part"


class Contents:
    """Every call blocks. Raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def write(self, file_id: str, source: BinaryIO) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / (file_id + UNFINISHED)
        try:
            with unfinished.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
            unfinished.replace(self.path(file_id))
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._sync_folder()

    def read(self, file_id: str, start: int, size: int) -> bytes:
        with self.path(file_id).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def remove(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)

    def keep_only(self, file_ids: Collection[str]) -> None:
        """What came of uploads that were cut off goes."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in file_ids:
                path.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
