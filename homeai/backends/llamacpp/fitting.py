"""Will the model fit? Asked before it is loaded, in the process that would load it.

The file's header (some 60 ms) is enough where there is plenty of room. Else llama.cpp builds the model and its
contexts without allocating anything, and logs what they would take; one more context takes some 20 ms.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from homeai.backends.llamacpp.binding import Model, device_memory, listening
from homeai.backends.llamacpp.context import Context, ContextConfig
from homeai.backends.llamacpp.gguf import read_sizes
from homeai.hardware import MachineProbe, Probe
from homeai.memory_plan import Bounds, Choice, Estimate, Needs, Plan, Planner, Room, Rooms
from homeai.messages import EngineConfig
from homeai.model_sizes import Buffers, ModelSizes, StepSize, needs, rough_buffers
from homeai.request import longest_request

log = logging.getLogger("homeai.engine")

MAX_ASKED_CELLS: Final = 2**18  # llama.cpp's books of more cells are large themselves; what they take is scaled up
AMPLE: Final = 2.0  # times the rough estimate: then nothing needs to be known exactly

_KV: Final = re.compile(r"^\w*(?:kv_cache|memory_recurrent)\w*: size =\s*([\d.]+) MiB")
_BUFFER: Final = re.compile(r"(\S+)\s+(compute|output) buffer size =\s*([\d.]+) MiB")
_HOST: Final = re.compile(r"^(CPU|BLAS|AMX|\w+_Host$)")

ContextOf = Callable[[EngineConfig, Model], ContextConfig]


def fitted(config: EngineConfig, device: str, step: StepSize, context_of: ContextOf) -> tuple[EngineConfig, Plan]:
    """The settings to load with, and how they came about; changes are logged.

    `context_of`: the context that given settings lead to. Raises `ModelLoadError`, `DeviceUnavailable`.
    """
    plan = plan_of(config, device, measured(device, MachineProbe()), step, context_of)
    for change in plan.changes:
        log.warning("%s", change)
    return with_choice(config, plan.choice), plan


def measured(device: str, probe: Probe) -> Rooms:
    """What is free now."""
    memory = probe.memory()
    on_device = device_memory() if device != "cpu" else None
    return Rooms(Room(*on_device) if on_device else None, Room(memory.available_bytes, memory.total_bytes))


def plan_of(
    config: EngineConfig, device: str, rooms: Rooms, step: StepSize, context_of: ContextOf, *, exactly: bool = False
) -> Plan:
    """Rough sizes are enough where there is ample room, unless they are wanted `exactly`."""
    path = Path(config.model_path)
    sizes = read_sizes(path)
    on_device = device != "cpu"
    wish = choice_of(config, sizes, on_device=on_device)

    def rough(choice: Choice) -> Needs:
        return needs(sizes, rough_buffers(sizes, choice, step, on_device=on_device), choice, on_device=on_device)

    if not exactly and is_ample(rough(wish), rooms, config.memory_margin):
        return Plan(wish, rough(wish), rooms)
    with listening(), closing(Model(path, n_gpu_layers=wish.num_gpu_layers, no_alloc=True)) as model:
        bounds = Bounds(
            longest_request=longest_request(config.max_model_len, model.n_ctx_train, config.num_cells_per_request),
            num_gpu_layers=sizes.num_gpu_layers if on_device else 0,
            can_quantise=config.flash_attention != "off",
            is_partitioned=config.kv_layout == "partitioned",
        )
        estimate = exact_estimate(config, model, sizes, context_of, on_device=on_device)
        planner = Planner(estimate, bounds, rooms, config.memory_margin)
        return planner.plan(wish, may_change=config.fit == "auto", model=path.name)


def is_ample(need: Needs, rooms: Rooms, margin: float) -> bool:
    """So much room that a rough estimate is enough."""
    pairs = [(need.host, rooms.host)]
    if need.device is not None and rooms.device is not None:
        pairs.append((need.device, rooms.device))
    return all(AMPLE * need.total <= room.free - margin * room.total for need, room in pairs)


def exact_estimate(
    config: EngineConfig, model: Model, sizes: ModelSizes, context_of: ContextOf, *, on_device: bool
) -> Estimate:
    """By `model`, which has no weights. Where some layers stay on the CPU, the buffers are those of all on the GPU."""

    @functools.cache
    def buffers(num_cells: int, max_num_seqs: int, kv_type: str) -> Buffers:
        asked = min(num_cells, MAX_ASKED_CELLS)
        changed = msgspec.structs.replace(config, num_kv_cells=asked, max_num_seqs=max_num_seqs, kv_type=kv_type)
        known = context_buffers(model, context_of(changed, model))
        return known if asked == num_cells else known.scaled(num_cells / asked)

    def estimate(choice: Choice) -> Needs:
        known = buffers(choice.num_cells, choice.max_num_seqs, choice.kv_type)
        return needs(sizes, known, choice, on_device=on_device)

    return estimate


def context_buffers(model: Model, config: ContextConfig) -> Buffers:
    """What a context takes, from llama.cpp's log while it makes one."""
    with listening() as lines:
        Context(model, config).close()
    kv = 0.0
    sizes: dict[tuple[str, str], float] = {}  # a buffer that is sized again counts as it is in the end
    for line in lines:
        if match := _KV.search(line):
            kv += float(match[1])
        elif match := _BUFFER.search(line):
            sizes[match[1], match[2]] = float(match[3])
    assert sizes, "llama.cpp's log names no buffers"
    on_host = sum(size for (name, _), size in sizes.items() if _HOST.match(name))
    on_device = sum(sizes.values()) - on_host
    return Buffers(*(int(size * 2**20) for size in (kv, on_device, on_host)))


def choice_of(config: EngineConfig, sizes: ModelSizes, *, on_device: bool) -> Choice:
    wanted = config.n_gpu_layers if config.n_gpu_layers >= 0 else sizes.num_gpu_layers
    return Choice(
        num_cells=config.num_kv_cells,
        max_num_seqs=config.max_num_seqs,
        kv_type=config.kv_type,
        num_gpu_layers=min(wanted, sizes.num_gpu_layers) if on_device else 0,
        host_cache_bytes=config.host_cache_bytes,
    )


def with_choice(config: EngineConfig, choice: Choice) -> EngineConfig:
    return msgspec.structs.replace(
        config,
        num_kv_cells=choice.num_cells,
        max_num_seqs=choice.max_num_seqs,
        kv_type=choice.kv_type,
        n_gpu_layers=choice.num_gpu_layers,
        host_cache_bytes=choice.host_cache_bytes,
    )
