"""What llama.cpp would take is known before it takes it, on the real model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from homeai.backends.llamacpp import runner
from homeai.backends.llamacpp.binding import Model, device_memory, listening, supports_gpu
from homeai.backends.llamacpp.context import Context, ContextConfig
from homeai.backends.llamacpp.fitting import context_buffers, measured, plan_of
from homeai.backends.llamacpp.gguf import parts, read_sizes
from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.hardware import GPU, Memory
from homeai.memory_plan import GIB, MIB, Plan, Room, Rooms
from homeai.messages import EngineConfig
from homeai.model_sizes import StepSize, rough_buffers
from tests.engine.factories import create_engine_config

STEP = StepSize(num_outputs=23, num_tokens=256)
CONTEXT = ContextConfig(
    num_kv_cells=4096,
    num_ids=17,
    num_outputs=23,
    max_num_batched_tokens=512,
    max_ubatch_tokens=256,
    num_threads=1,
)


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def ghost(model_path: Path) -> Iterator[Model]:
    model = Model(model_path, no_alloc=True)
    yield model
    model.close()


def plan(config: EngineConfig, rooms: Rooms) -> Plan:
    return plan_of(config, "cpu", rooms, STEP, lambda changed, model: runner._context_config(changed, model, "cpu"))


def ram(free: float, total: float = 2.0) -> Rooms:
    return Rooms(None, Room(int(free * GIB), int(total * GIB)))


# ---- the header ----------------------------------------------------------------------------------------


def test_header_tells_the_size_of_every_layer(model_path: Path, model: Model) -> None:
    sizes = read_sizes(model_path)
    assert sizes.weights == model.size_bytes
    assert len(sizes.layers) == 18
    assert sizes.is_tied
    assert sizes.kv_bytes(1, "f16") == model.kv_bytes_per_token("f16")
    assert (sizes.num_vocab, sizes.n_ctx_train) == (model.vocab.n_tokens, model.n_ctx_train)


def test_parts_of_a_split_model_are_named_by_the_first() -> None:
    first = Path("/m/x-00001-of-00003.gguf")
    assert [path.name[2:7] for path in parts(first)] == ["00001", "00002", "00003"]
    assert parts(Path("/m/x.gguf")) == [Path("/m/x.gguf")]


def test_part_that_is_missing_is_named(model_path: Path, tmp_path: Path) -> None:
    first = tmp_path / "x-00001-of-00002.gguf"
    first.symlink_to(model_path)
    with pytest.raises(ModelLoadError, match=r"not found: .*x-00002-of-00002\.gguf"):
        read_sizes(first)


def test_header_that_is_broken_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelLoadError, match=r"cannot load broken\.gguf"):
        read_sizes(path)


# ---- what llama.cpp would allocate ---------------------------------------------------------------------


def allocated(model: Model, config: ContextConfig) -> tuple[float, float]:
    """MiB of KV and of other buffers that a real context has, by llama.cpp's log."""
    with listening() as lines:
        Context(model, config).close()
    sizes = [re.search(r"(KV|compute|output) buffer size =\s*([\d.]+)", line) for line in lines]
    found = [(match[1], float(match[2])) for match in sizes if match]
    return sum(mb for name, mb in found if name == "KV"), sum(mb for name, mb in found if name != "KV")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_type": "q8_0"},
        {"num_kv_cells": 16384},
        {"swa_full": False},
        {"is_partitioned": True, "num_ids": 4},
        {"num_outputs": 200},
        {"flash_attention": "off"},
    ],
)
def test_estimate_is_what_is_allocated(changes: dict[str, object], model: Model, ghost: Model) -> None:
    config = ContextConfig(**{name: getattr(CONTEXT, name) for name in CONTEXT.__slots__} | changes)  # type: ignore[arg-type]
    buffers = context_buffers(ghost, config)
    kv, others = allocated(model, config)
    assert kv > 0
    assert buffers.kv / MIB == pytest.approx(kv, abs=0.1)
    assert buffers.host_compute / MIB == pytest.approx(others, rel=0.02, abs=0.1)
    assert buffers.device_compute == 0


def test_rough_estimate_is_enough(model_path: Path, ghost: Model) -> None:
    """It decides that there is ample room, so it may not be less."""
    sizes = read_sizes(model_path)
    for num_cells in (4096, 16384):
        planned = plan(create_engine_config(model_path, num_kv_cells=num_cells), ram(20, 24))
        rough = rough_buffers(sizes, planned.choice, STEP, on_device=False)
        exact = context_buffers(ghost, ContextConfig(num_cells, 17, 23, 512, 256, 1))
        assert exact.kv <= rough.kv
        assert exact.host_compute <= rough.host_compute


def test_more_cells_than_are_asked_about_are_not_estimated_too_small(
    model_path: Path, ghost: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = create_engine_config(model_path, num_kv_cells=16384)
    exact = plan(config, ram(1.5)).needs.host
    monkeypatch.setattr("homeai.backends.llamacpp.fitting.MAX_ASKED_CELLS", 4096)
    scaled = plan(config, ram(1.5)).needs.host
    assert scaled.kv == pytest.approx(exact.kv, rel=0.01)
    assert scaled.compute >= exact.compute


def test_asking_takes_no_memory_to_speak_of(model_path: Path) -> None:
    code = (
        "import sys, psutil; from pathlib import Path;"
        "from homeai.backends.llamacpp.binding import Model;"
        "from homeai.backends.llamacpp.context import Context, ContextConfig;"
        "model = Model(Path(sys.argv[1]), no_alloc=True); before = psutil.Process().memory_info().rss;"
        "Context(model, ContextConfig(65536, 17, 23, 512, 256, 1)).close();"
        "print(psutil.Process().memory_info().rss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(model_path)], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 96 * MIB  # the context of 65,536 cells is 1.2 GiB


MEASURE = """
import sys, psutil, msgspec
from homeai.backends.llamacpp import runner
from homeai.messages import EngineConfig
config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
loaded = runner.load(config, lambda fraction: None)
loaded.warm_up()
print(psutil.Process().memory_info().rss)
"""


@pytest.mark.parametrize("num_cells", [16384, 32768])
def test_plan_is_what_the_engine_takes(num_cells: int, model_path: Path) -> None:
    """All of it: 15 % is for the allocator, and for pages that nobody has touched yet."""
    config = create_engine_config(model_path, num_kv_cells=num_cells, max_drafts=15, num_cached_seqs=24, classes={})
    planned = plan(config, ram(1.1 if num_cells == 16384 else 1.4))
    assert planned.changes == ()
    text = msgspec.json.encode(config).decode()
    out = subprocess.run([sys.executable, "-c", MEASURE, text], capture_output=True, text=True, check=True)
    assert int(out.stdout) == pytest.approx(planned.needs.host.total, rel=0.15)


# ---- what is made of it --------------------------------------------------------------------------------


def test_cache_is_quantised_where_memory_is_short(model_path: Path) -> None:
    planned = plan(create_engine_config(model_path, num_kv_cells=16384), ram(0.75))
    assert planned.changes == ("model.kv_type is q8_0 instead of f16: that does not fit into memory",)


def test_strict_refuses_with_both_sides_and_what_would_fit(model_path: Path) -> None:
    config = create_engine_config(model_path, num_kv_cells=16384, fit="strict")
    with pytest.raises(
        DeviceUnavailable, match=r"needs \d+ MiB of memory .* of 2\.0 GiB 768 MiB are free .*would fit: "
    ):
        plan(config, ram(0.75))
    with pytest.raises(ModelLoadError, match=r"does not fit: .* would fit: scheduler\.kv_cells \d+; or model\.kv_type"):
        plan(config, ram(0.73, total=0.73))


def test_what_was_loaded_instead_is_told(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = ram(0.75)
    monkeypatch.setattr("homeai.backends.llamacpp.fitting.measured", lambda device, probe: rooms)
    loaded = runner.load(create_engine_config(model_path, num_kv_cells=16384), lambda fraction: None)
    try:
        assert loaded.notes == ["model.kv_type is q8_0 instead of f16: that does not fit into memory"]
        assert loaded.config.kv_type == "q8_0"
        assert loaded.limits.num_kv_cells == 16384
    finally:
        loaded.close()


# ---- what there is -------------------------------------------------------------------------------------


class FakeProbe:
    def memory(self) -> Memory:
        return Memory(16 * GIB, 10 * GIB)

    def gpu(self) -> GPU | None:
        return None

    def rss_bytes(self, pid: int | None = None) -> int:
        return 0


def test_room_is_measured_where_the_model_will_be() -> None:
    rooms = measured("cpu", FakeProbe())
    assert rooms == Rooms(None, Room(10 * GIB, 16 * GIB))


def test_gpu_memory_is_known_where_there_is_a_gpu() -> None:
    memory = device_memory()
    assert (memory is not None) == supports_gpu()
    if memory is not None:
        free, total = memory
        assert 0 < free <= total
