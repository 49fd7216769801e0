"""Headers are read, weights are not; what is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from homeai.errors import ModelLoadError
from homeai.safetensors_files import Tensor, tensors

save_file = pytest.importorskip("safetensors.numpy").save_file


def shard(path: Path, **arrays: list[float]) -> Path:
    save_file({name: np.array(values, np.float32) for name, values in arrays.items()}, path)
    return path


def test_header_says_types_shapes_and_sizes(tmp_path: Path) -> None:
    shard(tmp_path / "model-00001-of-00002.safetensors", norm=[1, 2, 3])
    save_file({"matrix": np.zeros((2, 5), np.float16)}, tmp_path / "model-00002-of-00002.safetensors")
    assert tensors(tmp_path) == {"norm": Tensor("F32", (3,), (0, 12)), "matrix": Tensor("F16", (2, 5), (0, 20))}
    assert sum(tensor.num_values for tensor in tensors(tmp_path).values()) == 13


def test_part_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    shard(tmp_path / "model-00001-of-00002.safetensors", a=[1])
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelLoadError, match=r"not complete: model-00002-of-00002\.safetensors of its index"):
        tensors(tmp_path)


def test_file_that_was_cut_off_says_both_sizes(tmp_path: Path) -> None:
    path = shard(tmp_path / "model.safetensors", a=[1, 2, 3])
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(ModelLoadError, match=rf"cut off: it has {len(data) - 1} bytes, its header says {len(data)}"):
        tensors(tmp_path)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"version https://git-lfs", b"\x10" + bytes(7) + b"{" * 16])
def test_file_that_is_none_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"not a safetensors file: .*model\.safetensors"):
        tensors(tmp_path)
