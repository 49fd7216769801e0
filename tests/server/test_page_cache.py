"""A model's file is read ahead: all of its parts, and a file that is gone is no error."""

from __future__ import annotations

from pathlib import Path

from homeai.server.page_cache import keep_warm, parts


def test_all_parts_of_a_split_model_are_kept(tmp_path: Path) -> None:
    names = [f"big-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for name in (*names, "other.gguf"):
        (tmp_path / name).write_bytes(b"weights")
    assert parts(tmp_path / names[0]) == [tmp_path / name for name in names]
    assert parts(tmp_path / "other.gguf") == [tmp_path / "other.gguf"]
    keep_warm(tmp_path / names[0])


def test_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    keep_warm(tmp_path / "gone.gguf")
