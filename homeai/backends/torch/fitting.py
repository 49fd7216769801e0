"""Does a folder of safetensors fit? Known from its headers and `config.json`: neither torch nor a weight is read.

Weights are exact. KV is what it would be if every layer kept every cell, which `sizing.py` then knows better; compute
buffers are about right.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from homeai.backends.torch.folder import ModelFolder
from homeai.hardware import MachineProbe, Probe
from homeai.memory_plan import MIB, Bounds, Choice, Need, Needs, Plan, Planner, Room, Rooms
from homeai.messages import EngineConfig
from homeai.model_sizes import ModelSizes, StepSize, rough_buffers
from homeai.request import longest_request

PROCESS_BYTES: Final = 700 * MIB  # interpreter, torch and transformers, vocabulary
DTYPE_BYTES: Final = {"F32": 4, "F64": 8}  # keys and values are as large as weights; all others are computed in two

_LAYER: Final = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_EMBEDDING: Final = re.compile(r"\b(?:embed_tokens|embed_tokens_per_layer|wte|word_embeddings)\.")


def fitted(config: EngineConfig, rooms: Rooms) -> tuple[EngineConfig, Plan]:
    """The settings to load with, and how they came about. Raises `ModelLoadError`, `DeviceUnavailable`."""
    plan = plan_of(config, rooms)
    choice = plan.choice
    config = msgspec.structs.replace(
        config,
        num_kv_cells=choice.num_cells,
        max_num_seqs=choice.max_num_seqs,
        host_cache_bytes=choice.host_cache_bytes,
    )
    return config, plan


def preview(config: EngineConfig) -> Plan:
    """What loading would do now, without torch. Raises what it would."""
    probe = MachineProbe()
    gpu = probe.gpu() if config.device != "cpu" else None
    on_device = Room(gpu.total_bytes - gpu.used_bytes, gpu.total_bytes) if gpu is not None else None
    return plan_of(config, measured(config, probe, on_device))


def plan_of(config: EngineConfig, rooms: Rooms) -> Plan:
    """`rooms.device`: where the model goes, None for ordinary memory."""
    on_device = rooms.device is not None
    folder = ModelFolder(Path(config.model_path))
    sizes = read_sizes(folder)
    wish = Choice(config.num_kv_cells, config.max_num_seqs, "f16", sizes.num_gpu_layers, config.host_cache_bytes)
    step = StepSize(num_outputs=config.max_num_seqs, num_tokens=config.max_num_batched_tokens)
    longest = longest_request(config.max_model_len, sizes.n_ctx_train, config.num_kv_cells)
    packed_twice = sizes.embedding if sizes.is_tied and not on_device else 0  # the output layer, for a CPU's kernels

    def estimate(choice: Choice) -> Needs:
        attended = replace(choice, num_cells=min(choice.num_cells, longest))  # by one sequence: blocks are gathered
        buffers = rough_buffers(sizes, attended, step, on_device=on_device)
        compute = buffers.device_compute if on_device else buffers.host_compute
        kv = sizes.kv_bytes(choice.num_cells, choice.kv_type)
        model = Need(weights=sizes.weights + packed_twice, kv=kv, compute=compute)
        host = Need(process=PROCESS_BYTES, host_cache=choice.host_cache_bytes)
        if on_device:
            return Needs(model, host)
        return Needs(None, Need(model.weights, model.kv, model.compute, host.process, host.host_cache))

    bounds = Bounds(
        longest_request=longest,
        num_gpu_layers=0,
        can_quantise=False,
    )
    planner = Planner(estimate, bounds, rooms, config.memory_margin)
    return planner.plan(wish, may_change=config.fit == "auto", model=folder.path.name)


def measured(config: EngineConfig, probe: Probe, gpu: Room | None) -> Rooms:
    """What is free now. Of the GPU, less what `gpu_memory_utilization` leaves beyond `memory_margin`."""
    memory = probe.memory()
    kept = max(0.0, 1 - config.gpu_memory_utilization - config.memory_margin)
    device = Room(gpu.free - int(kept * gpu.total), gpu.total) if gpu is not None else None
    return Rooms(device, Room(memory.available_bytes, memory.total_bytes))


def read_sizes(folder: ModelFolder) -> ModelSizes:
    """Raises `ModelLoadError`."""
    config = folder.text_config

    def number(key: str, default: int = 0) -> int:
        value = config.get(key)
        return value if isinstance(value, int) else default

    layers = [0] * number("num_hidden_layers")
    embedding = output = 0
    for name, tensor in folder.tensors.items():
        if match := _LAYER.search(name):
            layers += [0] * (int(match[1]) + 1 - len(layers))
            layers[int(match[1])] += tensor.num_bytes
        elif _EMBEDDING.search(name):
            embedding += tensor.num_bytes
        else:
            output += tensor.num_bytes
    num_heads = max(1, number("num_attention_heads", 1))
    head_size = number("head_dim", number("hidden_size") // num_heads)
    dtypes = {name: tensor.dtype for name, tensor in folder.tensors.items()}
    value_bytes = max(
        (DTYPE_BYTES.get(dtype, 2) for name, dtype in dtypes.items() if _EMBEDDING.search(name)), default=2
    )
    return ModelSizes(
        embedding=embedding,
        layers=tuple(layers),
        output=output,
        is_tied="lm_head.weight" not in folder.tensors,
        kv_values=len(layers) * 2 * number("num_key_value_heads", num_heads) * head_size * value_bytes // 2,
        num_vocab=folder.n_vocab,
        num_embd=number("hidden_size"),
        num_ff=number("intermediate_size"),
        n_ctx_train=folder.n_ctx_train,
    )
