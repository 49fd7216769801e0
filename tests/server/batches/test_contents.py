"""An uploaded file is there whole, or not at all; a folder that cannot be used is tried again."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from homeai.errors import NotReady
from homeai.server.batches.archive import Archive
from homeai.server.batches.contents import UNFINISHED, Contents
from homeai.server.batches.store import Store
from tests.server.batches.factories import make_file


class Torn(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if part := super().read(3):
            return part
        raise OSError("the client is gone")


def test_part_of_a_file_is_read(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "files")
    contents.write("file-1", io.BytesIO(b"0123456789"))
    assert contents.read("file-1", 2, 3) == b"234"
    contents.remove("file-1")
    contents.remove("file-1")
    assert list((tmp_path / "files").iterdir()) == []


def test_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        Contents(tmp_path).write("file-1", Torn(b"0123456789"))
    assert list(tmp_path.iterdir()) == []


async def test_what_a_power_cut_left_of_uploads_goes_at_the_start(tmp_path: Path) -> None:
    first = Archive(tmp_path)
    await first.do(Store.add_file, make_file("file-1"))
    await first.close()
    for name in ("file-1", "file-2", "file-3" + UNFINISHED):
        first.contents.write(name, io.BytesIO(b"x"))
    again = Archive(tmp_path)
    assert await again.do(Store.uploaded_ids) == {"file-1"}
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["file-1"]
    await again.close()


async def test_folder_that_cannot_be_used_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "batches"
    folder.write_text("in the way")
    archive = Archive(folder)
    for _ in range(2):
        with pytest.raises(NotReady, match="files and batches cannot be used"):
            await archive.do(Store.uploaded_ids)
    assert "files and batches cannot be used" in (archive.failure or ""), "as the status says it"
    folder.unlink()
    assert await archive.do(Store.uploaded_ids) == set()
    assert archive.failure is None
    said = [record.message.partition(" (")[0] for record in caplog.records]
    assert said == ["files and batches cannot be used", "files and batches can be used again"], "each once"
    await archive.close()
