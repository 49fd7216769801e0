"""What a folder takes is known from its headers; what does not fit is made to fit, or refused before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from homeai import config
from homeai.backends.torch.fitting import fitted, measured, plan_of, read_sizes
from homeai.backends.torch.folder import ModelFolder
from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.hardware import Memory
from homeai.memory_plan import GIB, MIB, Room, Rooms
from homeai.messages import EngineConfig
from homeai.server.launch import engine_config

WIDTH, NUM_VOCAB, NUM_LAYERS = 64, 1000, 3
AMPLE = Rooms(None, Room(64 * GIB, 64 * GIB))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    layers = {
        f"model.layers.{i}.mlp.up_proj.weight": np.zeros((WIDTH, 2 * WIDTH), np.float16) for i in range(NUM_LAYERS)
    }
    tensors = {"model.embed_tokens.weight": np.zeros((NUM_VOCAB, WIDTH), np.float16), **layers}
    save_file(tensors, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"model.norm.weight": np.zeros(WIDTH, np.float16)}, tmp_path / "model-00002-of-00002.safetensors")
    text = {
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": NUM_VOCAB,
        "max_position_embeddings": 8192,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "parrot", "text_config": text}))
    return tmp_path


def wish(folder: Path, *settings: tuple[str, str]) -> EngineConfig:
    return engine_config(config.load(None, env={}, overrides=settings), folder)


def test_sizes_are_those_of_the_tensors(folder: Path) -> None:
    sizes = read_sizes(ModelFolder(folder))
    assert sizes.embedding == 2 * NUM_VOCAB * WIDTH
    assert sizes.layers == (2 * WIDTH * 2 * WIDTH,) * NUM_LAYERS
    assert (sizes.output, sizes.is_tied, sizes.n_ctx_train) == (2 * WIDTH, True, 8192)
    assert sizes.kv_bytes(10, "f16") == 10 * NUM_LAYERS * 2 * 2 * 32 * 2


def test_keys_and_values_are_as_wide_as_the_weights(folder: Path) -> None:
    narrow = read_sizes(ModelFolder(folder)).kv_values
    path = folder / "model-00001-of-00002.safetensors"
    save_file({"model.embed_tokens.weight": np.zeros((NUM_VOCAB, WIDTH), np.float32)}, path)
    assert read_sizes(ModelFolder(folder)).kv_values == 2 * narrow


def test_what_fits_is_left_as_it_is(folder: Path) -> None:
    wanted = wish(folder)
    changed, plan = fitted(wanted, AMPLE)
    assert changed == wanted
    assert not plan.changes


def test_cache_gives_way_first(folder: Path) -> None:
    needed = plan_of(wish(folder), AMPLE).needs.host
    free = needed.total - needed.host_cache - needed.kv // 4
    changed, plan = fitted(wish(folder, ("model.memory_margin", "0")), Rooms(None, Room(free, 64 * GIB)))
    assert changed.host_cache_bytes == 0
    assert 8192 <= changed.num_kv_cells < 16384
    assert any("scheduler.kv_cells is" in change for change in plan.changes)


def test_what_never_fits_is_refused_and_what_does_not_now_is_waited_for(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match=rf"{folder.name} does not fit: it needs"):
        plan_of(wish(folder), Rooms(None, Room(100 * MIB, 100 * MIB)))
    with pytest.raises(DeviceUnavailable, match=rf"{folder.name} does not fit now: it needs"):
        plan_of(wish(folder), Rooms(None, Room(100 * MIB, 64 * GIB)))


def test_card_keeps_what_torch_may_not_take(folder: Path) -> None:
    class Probe:
        def memory(self) -> Memory:
            return Memory(64 * GIB, 32 * GIB)

    settings = [("model.gpu_memory_utilization", "0.5"), ("model.memory_margin", "0.1")]
    rooms = measured(wish(folder, *settings), Probe(), Room(10 * GIB, 10 * GIB))  # type: ignore[arg-type]
    assert rooms.device == Room(6 * GIB, 10 * GIB)  # of which the margin is not used either
    assert rooms.host == Room(32 * GIB, 64 * GIB)
    needs = plan_of(wish(folder), rooms).needs
    assert needs.device is not None
    assert needs.host.weights == 0
