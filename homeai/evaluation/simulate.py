"""`homeai simulate`: a workload in several modes, on this machine as measured or on another one as estimated.

The settings are the daemon's own and go the same way to the scheduler. What the front end refuses before it queues
(`max_waiting`) is not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from homeai.config import Config
from homeai.engine.process import scheduler_config
from homeai.engine.runner import RunnerLimits
from homeai.errors import ConfigError
from homeai.evaluation import simulator, traces, workload
from homeai.evaluation.cost_model import SMALL_CPU, MeasuredCost, StepCost
from homeai.evaluation.plan.estimate import estimate
from homeai.evaluation.plan.roofline import RooflineCost
from homeai.evaluation.summary import Summary, summarise
from homeai.evaluation.workload import Arrival
from homeai.messages import EngineConfig
from homeai.scheduling.controls import SchedulerConfig
from homeai.server.launch import engine_config

MODES: Final = ("continuous", "static", "window", "single")
SMALL_MODEL_KV_BYTES: Final = 18_432  # per token, of the model that SMALL_CPU was measured with


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`cost` says how step times were come by; `is_estimate` that nobody measured them."""

    workload: str
    num_requests: int
    cost: str
    is_estimate: bool
    modes: dict[str, Summary]


def compare(config: Config, name: str, arrivals: Sequence[Arrival], modes: Sequence[str], cost: StepCost) -> Comparison:
    """Raises `ConfigError` for a mode that is not known and for a class that is not configured."""
    _check(config, arrivals, modes)
    base, limits = scheduler_of(config, cost)
    weights = {class_name: c.weight for class_name, c in config.classes.items()}
    summaries = {
        mode: summarise(simulator.run(arrivals, replace(base, mode=mode), cost, limits=limits), weights)
        for mode in modes
    }
    return Comparison(
        workload=name,
        num_requests=len(arrivals),
        cost=cost.label,
        is_estimate=isinstance(cost, RooflineCost),
        modes=summaries,
    )


def arrivals_of(name: str, seed: int, scale: float) -> list[Arrival]:
    """A trace by name, or a file of arrivals. Raises `ConfigError`."""
    if name in traces.TRACES:
        return workload.scaled(traces.TRACES[name](seed), scale)
    if not Path(name).exists():
        raise ConfigError(f"--workload {name}: neither a file nor one of {', '.join(traces.TRACES)}")
    return workload.scaled(workload.load(Path(name)), scale)


def cost_of(preset: str | None, model_size: str, fitted: Path | None, steps: Path | None) -> StepCost:
    """An estimate for `preset`; or fitted from a log of `steps` (and kept in `fitted`); or as kept in `fitted`;
    or as measured with the default model."""
    if preset is not None:
        if fitted is not None or steps is not None:
            raise ConfigError(f"--preset {preset} is an estimate: it cannot be combined with --cost or --fit")
        return estimate(preset, model_size)
    if steps is not None:
        from homeai.evaluation import cost_fit  # numpy, only for those who fit

        cost = cost_fit.fit(cost_fit.load_steps(steps), steps.name)
        if fitted is not None:
            cost.save(fitted)
        return cost
    return MeasuredCost.load(fitted) if fitted is not None else SMALL_CPU


def _check(config: Config, arrivals: Sequence[Arrival], modes: Sequence[str]) -> None:
    for mode in modes:
        if mode not in ("auto", *MODES):
            raise ConfigError(f"--mode {mode}: known are auto, {', '.join(MODES)}")
    for arrival in arrivals:
        if arrival.fairness_class not in config.classes:
            raise ConfigError(f"the workload's class {arrival.fairness_class!r} is none of {', '.join(config.classes)}")


def scheduler_of(config: Config, cost: StepCost) -> tuple[SchedulerConfig, RunnerLimits]:
    """What the engine child would make of these settings on that machine."""
    settings = engine_config(config, Path("simulated"))
    limits = _limits(settings, cost)
    is_gpu = isinstance(cost, RooflineCost)
    return scheduler_config(settings, limits, device="cuda" if is_gpu else "cpu"), limits


def _limits(settings: EngineConfig, cost: StepCost) -> RunnerLimits:
    kv_bytes_per_token = SMALL_MODEL_KV_BYTES
    if isinstance(cost, RooflineCost):
        kv_bytes_per_token = cost.model.kv_bytes_per_token
        if settings.num_kv_cells > cost.max_kv_cells:
            raise ConfigError(
                f"scheduler.kv_cells: {settings.num_kv_cells:,} is not allowed: at most {cost.max_kv_cells:,} "
                f"fit beside {cost.model.name} on an {cost.machine}"
            )
    max_model_len = min(settings.max_model_len or settings.num_cells_per_request, settings.num_cells_per_request)
    is_partitioned = settings.kv_layout == "partitioned"
    return RunnerLimits(
        num_kv_cells=settings.num_kv_cells,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=max_model_len,
        end_token_ids=frozenset(),
        num_seqs=settings.max_num_seqs + (0 if is_partitioned else settings.num_cached_seqs),
        is_partitioned=is_partitioned,
        kv_bytes_per_token=kv_bytes_per_token,
    )
