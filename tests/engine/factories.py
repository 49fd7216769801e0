"""What engine and backend tests share: limits for a simulated runner, the settings of a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from homeai.engine.runner import RunnerLimits
from homeai.evaluation import simulator
from homeai.messages import EngineConfig
from homeai.policy import ClassPolicy
from homeai.scheduling.controls import SchedulerConfig
from tests.scheduling.factories import WEIGHTS


def limits_of(config: SchedulerConfig, *, num_missing_cells: int = 0) -> RunnerLimits:
    """What a runner must be able to do for a scheduler with this configuration; or with fewer cells than it counts."""
    return replace(simulator.limits_of(config), num_kv_cells=config.cache.num_cells - num_missing_cells)


def create_engine_config(model_path: Path, **changes: object) -> EngineConfig:
    defaults: dict[str, object] = {
        "model_path": str(model_path),
        "device": "cpu",
        "n_gpu_layers": 0,
        "num_threads": 1,  # several wait for each other, and for long where other processes want the cores
        "num_kv_cells": 2048,
        "max_model_len": 0,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_chunk_tokens": 256,
        "chunked_prefill": True,
        "flash_attention": "on",
        "swa_full": True,
        "kv_type": "f16",
        "kv_layout": "unified",
        "num_cached_seqs": 8,
        "prefix_cache_tokens": None,
        "host_cache_bytes": 0,
        "max_drafts": 0,
        "mode": "auto",
        "window_s": 0.5,
        "adaptive_budget": False,
        "prompt_token_weight": 1.0,
        "output_token_weight": 2.0,
        "classes": {name: ClassPolicy(weight=weight) for name, weight in WEIGHTS.items()},
        "sources": {},
        "heartbeat_interval_s": 0.2,
    }
    return EngineConfig(**defaults | changes)  # type: ignore[arg-type]
