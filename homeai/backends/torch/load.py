"""Opens a folder of safetensors as a `TorchRunner`. What the engine's process imports of this package."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import psutil
import torch

from homeai.backends.torch import flashinfer
from homeai.backends.torch.attention import Attention
from homeai.backends.torch.blocks import num_blocks_for
from homeai.backends.torch.fitting import fitted, measured
from homeai.backends.torch.folder import ModelFolder
from homeai.backends.torch.graphs import DecodeGraphs, cuda_recorder
from homeai.backends.torch.kv import LayerGroup, PagedKV, grouped
from homeai.backends.torch.model import Model
from homeai.backends.torch.runner import TorchRunner
from homeai.backends.torch.sdpa import SdpaAttention
from homeai.backends.torch.sizing import CacheSize, Demand, GroupSize, cache_size, largest_cells
from homeai.backends.torch.tables import BlockTables, Group
from homeai.backends.torch.vocab import FolderVocab
from homeai.engine.runner import RunnerLimits
from homeai.errors import DeviceUnavailable
from homeai.hardware import MachineProbe
from homeai.memory_plan import Room
from homeai.messages import EngineConfig
from homeai.request import longest_request

MIN_CELLS: Final = 256
GIB: Final = 2**30


def load(path: Path, config: EngineConfig, on_progress: Callable[[float], None]) -> TorchRunner:
    """Read the weights in `path` (config.json and *.safetensors) and lay out the KV cache.

    `on_progress` is told the part of the weights that is read, 0 … 1. The runner has what `engine/process.py` asks of
    llama.cpp's: `config`, `notes`, `device`, `model_bytes`, `kv_bytes`, `limits`, `warm_up()`, `close()`.
    Raises `ModelLoadError` for a folder that cannot be loaded, `DeviceUnavailable` where the device is missing or has
    no room now; anything it took is freed then.
    """
    device = torch.device(resolve_device(config.device))
    if config.num_threads > 0:
        torch.set_num_threads(config.num_threads)
    gpu = Room(*torch.cuda.mem_get_info(device)) if device.type == "cuda" else None
    config, plan = fitted(config, measured(config, MachineProbe(), gpu))
    try:
        return _load(path, config, device, list(plan.changes), on_progress)
    except torch.OutOfMemoryError as error:
        raise DeviceUnavailable(f"{path.name} does not fit: {str(error).splitlines()[0]}") from error
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _load(
    path: Path, config: EngineConfig, device: torch.device, notes: list[str], on_progress: Callable[[float], None]
) -> TorchRunner:
    vocab = FolderVocab(ModelFolder(path))
    on_progress(0.0)
    with torch.inference_mode():
        model = Model.load(path, device)
        on_progress(1.0)
        groups = grouped(model.layer_shapes())
    demand = _demand(config, model)
    size, said = _fitted(config, _sizes(groups, config, model.dtype), demand, device)
    kv = PagedKV(groups, [group.num_blocks for group in size.groups], model.dtype, device)
    tables = BlockTables(size.groups, demand.num_seqs, demand.slack)
    limits = RunnerLimits(
        num_kv_cells=size.num_cells,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=demand.max_num_batched_tokens,
        max_model_len=longest_request(config.max_model_len, model.n_ctx_train, size.num_cells),
        end_token_ids=vocab.end_token_ids() or model.end_token_ids(),
        num_seqs=demand.num_seqs,
        kv_bytes_per_token=sum(group.shape.bytes_per_token(model.dtype) * len(group.layers) for group in groups),
        max_drafts=config.max_drafts,
    )
    config = msgspec.structs.replace(config, num_kv_cells=size.num_cells)
    attention, graphs = _attention(model, kv, size.groups, limits)
    notes = [*notes, *said]
    return TorchRunner(model, vocab, kv, tables, attention, limits, graphs=graphs, config=config, notes=notes)


def _attention(
    model: Model, kv: PagedKV, groups: Sequence[Group], limits: RunnerLimits
) -> tuple[Attention, DecodeGraphs | None]:
    """FlashInfer and CUDA graphs where they are to be had, else torch's own kernels."""
    if not flashinfer.can_serve(kv, has_sinks=model.has_sinks):
        return SdpaAttention(kv), None
    buffer = flashinfer.workspace(kv.device)
    max_blocks = num_blocks_for(limits.max_model_len)

    def attention_of(num_rows: int) -> Attention:
        return flashinfer.FlashInferDecode(kv, num_rows, num_rows * max_blocks, buffer)

    graphs = DecodeGraphs(model, kv, groups, attention_of, cuda_recorder(), limits.max_num_seqs)
    return flashinfer.FlashInferAttention(kv, buffer), graphs


def resolve_device(wanted: str) -> str:
    """`auto` is decided once, here; `cuda` without a GPU is an error, never a slow CPU run."""
    if wanted != "cpu" and torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise DeviceUnavailable("model.device is cuda, but torch sees no GPU (is it a CUDA build? is the driver up?)")
    return "cpu"


def _demand(config: EngineConfig, model: Model) -> Demand:
    # without chunking one whole prompt must fit a step, whatever the budget
    longest = longest_request(config.max_model_len, model.n_ctx_train, config.num_kv_cells)
    return Demand(
        num_cells=config.num_kv_cells,
        num_seqs=config.max_num_seqs + config.num_cached_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens + (0 if config.chunked_prefill else longest),
        slack=config.max_drafts,
    )


def _sizes(groups: Sequence[LayerGroup], config: EngineConfig, dtype: torch.dtype) -> list[GroupSize]:
    return [GroupSize(group.bytes_per_block(dtype), group.shape.window, config.swa_full) for group in groups]


def _fitted(
    config: EngineConfig, sizes: Sequence[GroupSize], demand: Demand, device: torch.device
) -> tuple[CacheSize, list[str]]:
    """As many cells as are wanted, or with `fit: auto` as many as there is room for, and what to say about it."""
    free = _free_bytes(config, device)
    wanted = cache_size(sizes, demand)
    if demand.num_cells and wanted.num_bytes <= free:
        return wanted, []
    num_cells = largest_cells(sizes, demand, free)
    if num_cells < MIN_CELLS or (demand.num_cells and config.fit == "strict"):
        raise DeviceUnavailable(
            f"{demand.num_cells or MIN_CELLS} KV cells take {wanted.num_bytes / GIB:.1f} GiB, but only "
            f"{max(0, free) / GIB:.1f} GiB are left beside the weights; {num_cells} cells would fit"
        )
    said = [f"scheduler.kv_cells is {num_cells} instead of {demand.num_cells}: that does not fit into memory"]
    return cache_size(sizes, replace(demand, num_cells=num_cells)), said if demand.num_cells else []


def _free_bytes(config: EngineConfig, device: torch.device) -> int:
    """For the KV cache, with the weights loaded."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free - total * (1 - config.gpu_memory_utilization))
    memory = psutil.virtual_memory()
    return int(memory.available - memory.total * config.memory_margin)
