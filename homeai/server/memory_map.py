"""What the memory of the model's device holds: a GPU's, else the machine's. Pure; the parts are all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from homeai.status import GPUStatus, KVStatus, MemoryMap, MemoryPart, MemoryStatus

MAX_SOURCES: Final = 8


def memory_map(
    memory: MemoryStatus,
    kv: KVStatus,
    cells: Mapping[str, int],
    *,
    is_on_gpu: bool,
    has_pins: bool,
    others_bytes: int | None,
) -> MemoryMap:
    """`cells`: of the context memory, those in which each source's requests run."""
    if is_on_gpu and memory.gpu is not None:
        return _of_gpu(memory, memory.gpu, kv, cells, has_pins=has_pins, others_bytes=others_bytes)
    total, ours = memory.total_bytes, memory.engine_rss_bytes + memory.server_rss_bytes
    server = memory.server_rss_bytes
    free = max(0, min(memory.available_bytes, total - ours))
    room = _Room(memory.engine_rss_bytes)
    weights, context, saved = room.take(memory.model_bytes), room.take(memory.kv_bytes), room.take(kv.host_bytes)
    parts = [
        MemoryPart("weights", weights),
        *_context(context, kv, cells, has_pins=has_pins),
        MemoryPart("saved", saved),
        MemoryPart("engine", room.num_bytes),
        MemoryPart("server", server),
        MemoryPart("others", max(0, total - ours - free)),
        MemoryPart("free", free),
    ]
    return MemoryMap("RAM", total, [part for part in parts if part.num_bytes])


def _of_gpu(
    memory: MemoryStatus,
    gpu: GPUStatus,
    kv: KVStatus,
    cells: Mapping[str, int],
    *,
    has_pins: bool,
    others_bytes: int | None,
) -> MemoryMap:
    """What is used and nobody else's is the engine's; where nobody can say who it is, all that is not the model's."""
    room = _Room(gpu.used_bytes)
    weights, context = room.take(memory.model_bytes), room.take(memory.kv_bytes)
    others = room.take(room.num_bytes if others_bytes is None or not weights else others_bytes)
    parts = [
        MemoryPart("weights", weights),
        *_context(context, kv, cells, has_pins=has_pins),
        MemoryPart("engine", room.num_bytes),
        MemoryPart("others", others),
        MemoryPart("free", max(0, gpu.total_bytes - gpu.used_bytes)),
    ]
    return MemoryMap("GPU", gpu.total_bytes, [part for part in parts if part.num_bytes])


class _Room:
    """What is taken from it is not more than there is: the parts were measured at different moments."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def take(self, num_bytes: int) -> int:
        taken = max(0, min(num_bytes, self.num_bytes))
        self.num_bytes -= taken
        return taken


def _context(num_bytes: int, kv: KVStatus, cells: Mapping[str, int], *, has_pins: bool) -> list[MemoryPart]:
    """The context memory: who runs in it, what is pinned, what is kept, and what nobody uses."""
    per_cell = num_bytes / kv.total if kv.total else 0.0
    held, num_cells = max(0, kv.used - kv.kept), sum(cells.values())
    running = min(held, num_cells) if has_pins else held  # what no request runs in is pinned
    scale = running / num_cells if num_cells else 0.0
    most = sorted(cells.items(), key=lambda item: -item[1])
    named = [
        *((source, count) for source, count in most[:MAX_SOURCES]),
        (None, sum(count for _, count in most[MAX_SOURCES:])),
    ]
    parts = [
        *(MemoryPart("running", int(count * scale * per_cell), source) for source, count in named),
        MemoryPart("pinned", int((held - running) * per_cell)),
        MemoryPart("kept", int(kv.kept * per_cell)),
    ]
    return [*parts, MemoryPart("spare", num_bytes - sum(part.num_bytes for part in parts))]
