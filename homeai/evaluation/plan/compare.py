"""One trace on several cards, each with as many cells as fit there: what is admitted, parked and refused differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation import simulate, simulator
from homeai.evaluation.bench.score import Prices, cost_of
from homeai.evaluation.plan.architecture import Architecture
from homeai.evaluation.plan.capacity import Setting, max_cells
from homeai.evaluation.plan.estimate import on_card
from homeai.evaluation.plan.gpus import GPU
from homeai.evaluation.summary import Summary, summarise
from homeai.evaluation.workload import Arrival
from homeai.memory_plan import CELL_STEP


@dataclass(frozen=True, slots=True)
class Side:
    """A card as it did with the trace. num_cells: of KV, what was wanted or what fits. cost: of an accepted answer."""

    gpu: GPU
    num_cells: int
    summary: Summary
    cost: float | None


def compare(
    config: Config,
    model: Architecture,
    cards: Sequence[GPU],
    setting: Setting,
    arrivals: Sequence[Arrival],
    prices: Sequence[Prices],
) -> list[Side]:
    """`prices`: of each card in turn. Raises `ConfigError` for a card that holds less than a single step."""
    return [_side(config, model, gpu, setting, arrivals, price) for gpu, price in zip(cards, prices, strict=True)]


def _side(
    config: Config, model: Architecture, gpu: GPU, setting: Setting, arrivals: Sequence[Arrival], prices: Prices
) -> Side:
    cost = on_card(gpu, model, setting)
    num_cells = min(setting.num_cells, max_cells(model, gpu, setting))
    if num_cells < CELL_STEP:
        raise ConfigError(f"{model.name} leaves room for {num_cells} tokens of context on an {gpu.name}")
    fitting = config.model_copy(
        update={
            "scheduler": config.scheduler.model_copy(
                update={"kv_cells": num_cells, "max_num_seqs": setting.num_seqs, "mode": "continuous"}
            )
        }
    )
    scheduler, limits = simulate.scheduler_of(fitting, cost)
    run = simulator.run(arrivals, scheduler, cost, limits=limits)
    summary = summarise(run, {name: each.weight for name, each in config.classes.items()})
    joules = gpu.watts * summary.busy * summary.wall_s
    return Side(gpu, num_cells, summary, cost_of(prices, joules, summary.wall_s, summary.overall.num_completed))
