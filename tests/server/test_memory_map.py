"""The parts of the memory are all of it, on a GPU and without one."""

from __future__ import annotations

import pytest

from homeai.server.memory_map import memory_map
from homeai.status import GPUStatus, KVStatus, MemoryMap, MemoryStatus

KV = KVStatus(used=500, total=1000, kept=100, host_bytes=30)


def memory(**changes: object) -> MemoryStatus:
    values = {
        "model_bytes": 300,
        "kv_bytes": 100,
        "engine_rss_bytes": 500,
        "server_rss_bytes": 50,
        "total_bytes": 1000,
        "available_bytes": 250,
        "gpu": None,
    }
    return MemoryStatus(**(values | changes))  # type: ignore[arg-type]


def made(memory: MemoryStatus, kv: KVStatus = KV, **changes: object) -> MemoryMap:
    values: dict[str, object] = {"is_on_gpu": memory.gpu is not None, "has_pins": False, "others_bytes": None}
    cells = {"kitchen": 300, "desk": 100}
    return memory_map(memory, kv, cells, **(values | changes))  # type: ignore[arg-type]


def sizes(found: MemoryMap) -> dict[str, int]:
    return {part.source or part.kind: part.num_bytes for part in found.parts}


def test_ram_is_weights_context_our_processes_others_and_what_is_free() -> None:
    found = made(memory())
    assert found.where == "RAM"
    assert sizes(found) == {
        "weights": 300,
        "kitchen": 30,
        "desk": 10,
        "kept": 10,
        "spare": 50,
        "saved": 30,
        "engine": 70,
        "server": 50,
        "others": 200,
        "free": 250,
    }


def test_gpu_is_weights_context_work_space_others_and_what_is_free() -> None:
    gpu = GPUStatus("H200", used_bytes=600, total_bytes=1000, utilisation=0.5)
    found = made(memory(gpu=gpu), others_bytes=120)
    assert found.where == "GPU"
    assert (sizes(found)["engine"], sizes(found)["others"], sizes(found)["free"]) == (80, 120, 400)


def test_gpu_whose_users_nobody_knows_is_others_beside_the_model() -> None:
    gpu = GPUStatus("H200", used_bytes=600, total_bytes=1000, utilisation=0.5)
    assert sizes(made(memory(gpu=gpu)))["others"] == 200


def test_what_no_request_runs_in_is_pinned_where_there_are_pins() -> None:
    kv = KVStatus(used=700, total=1000, kept=100)
    assert sizes(made(memory(), kv, has_pins=True))["pinned"] == 20
    assert "pinned" not in sizes(made(memory(), kv))


@pytest.mark.parametrize("is_on_gpu", [False, True])
@pytest.mark.parametrize("kv", [KV, KVStatus(0, 1000), KVStatus(1000, 1000, 0, 999), KVStatus(0, 0)])
@pytest.mark.parametrize(
    "sleeping", [{}, {"model_bytes": 0, "kv_bytes": 0, "engine_rss_bytes": 0}, {"engine_rss_bytes": 40}]
)
def test_parts_are_all_of_it_whatever_was_measured(is_on_gpu: bool, kv: KVStatus, sleeping: dict[str, int]) -> None:
    gpu = GPUStatus("H200", used_bytes=450, total_bytes=1000, utilisation=0.5) if is_on_gpu else None
    found = made(memory(gpu=gpu, **sleeping), kv, others_bytes=900)
    assert sum(part.num_bytes for part in found.parts) == found.total_bytes
    assert all(part.num_bytes > 0 for part in found.parts)
