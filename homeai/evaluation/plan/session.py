"""Puts a plan together from what its owner asked for. What the command line calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation import simulate, workload
from homeai.evaluation.bench import trace
from homeai.evaluation.bench.score import Prices
from homeai.evaluation.cost_fit import MIN_SAMPLES, load_steps
from homeai.evaluation.plan import capacity, compare, estimate, gpus, models, speed
from homeai.evaluation.plan.architecture import Architecture, Numbers, of_numbers
from homeai.evaluation.plan.calibration import MANY_ROWS, SHORT_PROMPT, Calibration, Point, points_of
from homeai.evaluation.plan.calibration import calibrate as solve
from homeai.evaluation.plan.capacity import Need, Setting
from homeai.evaluation.plan.compare import Side
from homeai.evaluation.plan.roofline import RooflineCost
from homeai.evaluation.plan.speed import Speed
from homeai.evaluation.workload import Arrival
from homeai.memory_plan import Plan

CALIBRATION_FILE: Final = "calibration.json"  # in the data folder
ROWS: Final = (1, 2, 4, MANY_ROWS, 16)
PROMPTS: Final = (SHORT_PROMPT, 64, 128, 256, 512)
CONTEXTS: Final = (2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
KV_TYPES: Final = ("f16", "q8_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """streams: at once. context: tokens of each. prompt: tokens before an answer. hours: prices of each card's hour."""

    streams: int
    context: int
    prompt: int
    cards: Sequence[str] = ()
    trace: str | None = None
    seed: int = 11
    scale: float = 1.0
    hours: Sequence[float] = ()
    kwh: float | None = None
    currency: str = "EUR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """`plan`: of memory, for the settings as they are. `speeds`: empty where nobody calibrated this machine."""

    file: str
    plan: Plan
    wish: Wish
    speeds: list[Speed]
    calibration: Calibration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCards:
    """By card. `fitting`: by KV type and card, sequences of each of `contexts`. `speeds`: where the model fits."""

    model: Architecture
    wish: Wish
    setting: Setting
    needs: dict[str, Need]
    contexts: Sequence[int]
    fitting: dict[str, dict[str, list[int]]]
    speeds: dict[str, list[Speed]]
    sides: list[Side] = field(default_factory=list)
    calibration: Calibration | None


def architecture(path: Path | None, model_size: str | None, numbers: Mapping[str, Any]) -> Architecture:
    """Of a file, a published model, or numbers. Raises `ConfigError`, `ModelLoadError`."""
    if model_size is not None:
        return models.find(model_size)
    if path is None:
        missing = [f"--{name}" for name in ("layers", "hidden", "heads", "vocab") if name not in numbers]
        if missing:
            raise ConfigError(f"a model without a file also needs {', '.join(missing)}")
        return of_numbers(Numbers(**numbers))
    if path.is_dir():
        from homeai.evaluation.plan.architecture_folder import of_folder

        return of_folder(path)
    from homeai.evaluation.plan.architecture_file import of_file

    return of_file(path)


def here(config: Config, path: Path, wish: Wish) -> Here:
    """Raises `HomeAIError` for a model that does not fit."""
    from homeai.backends.choice import preview
    from homeai.server.launch import engine_config

    plan = preview(engine_config(config, path))
    known = calibration_of(config, path)
    speeds: list[Speed] = []
    if known is not None:
        cost = RooflineCost(architecture(path, None, {}), known.rates, "", known.machine, plan.choice.num_cells)
        speeds = speed.speeds(cost, speed.counts(wish.streams), wish.context, wish.prompt)
    return Here(file=path.name, plan=plan, wish=wish, speeds=speeds, calibration=known)


def on_cards(config: Config, model: Architecture, wish: Wish) -> OnCards:
    """Raises `ConfigError` for cards that are not known, and with a trace for one that does not hold the model."""
    cards = [gpus.find(name) for name in wish.cards]
    prices = _prices(wish)
    setting = Setting(
        num_seqs=wish.streams,
        context=wish.context,
        kv_type=config.model.kv_type,
        swa_full=config.model.swa_full,
        margin=config.model.memory_margin,
        num_outputs=wish.streams + config.scheduler.max_drafts,
    )
    contexts = [context for context in CONTEXTS if context <= max(model.sizes.n_ctx_train, CONTEXTS[0])]
    costs = {
        gpu.name: estimate.on_card(gpu, model, setting) for gpu in cards if capacity.max_cells(model, gpu, setting)
    }
    sides = []
    if wish.trace is not None:
        arrivals = arrivals_of(wish.trace, wish.seed, wish.scale)
        sides = compare.compare(config, model, cards, setting, arrivals, prices)
    return OnCards(
        model=model,
        wish=wish,
        setting=setting,
        needs={gpu.name: capacity.need(model, gpu, setting) for gpu in cards},
        contexts=contexts,
        fitting={
            kv_type: {gpu.name: capacity.max_seqs(model, gpu, setting, kv_type, contexts) for gpu in cards}
            for kv_type in dict.fromkeys((setting.kv_type, *KV_TYPES))
        },
        speeds={
            name: speed.speeds(cost, _fitting(wish, cost), wish.context, wish.prompt) for name, cost in costs.items()
        },
        sides=sides,
        calibration=_any_calibration(config),
    )


def arrivals_of(name: str, seed: int, scale: float) -> list[Arrival]:
    """A trace by name; a file of arrivals; or one of `homeai bench --save-trace`. Raises `ConfigError`."""
    path = Path(name)
    if path.is_file() and b'"prompt_token_ids"' not in path.read_bytes():
        return workload.scaled(trace.arrivals_of(trace.load(path), str(seed)), scale)
    return simulate.arrivals_of(name, seed, scale)


def _fitting(wish: Wish, cost: RooflineCost) -> list[int]:
    """Numbers of streams whose contexts fit at once."""
    return [count for count in speed.counts(wish.streams) if count * wish.context <= cost.max_kv_cells]


def _prices(wish: Wish) -> list[Prices]:
    if wish.hours and len(wish.hours) != len(wish.cards):
        raise ConfigError(f"--price-per-hour: {len(wish.hours)} of them for {len(wish.cards)} --gpu")
    if (wish.hours or wish.kwh is not None) and wish.trace is None:
        raise ConfigError("--price-per-hour and --kwh: an answer's cost needs a --trace of answers")
    hours: Sequence[float | None] = wish.hours or [None] * len(wish.cards)
    return [Prices(kwh=wish.kwh, hour=hour, currency=wish.currency) for hour in hours]


# ---- calibrations --------------------------------------------------------------------------------------


def calibrate(
    config: Config,
    path: Path,
    *,
    steps: Path | None = None,
    daemon: tuple[str, str | None] | None = None,
    rounds: int = 3,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Calibration:
    """From a log of `steps`, the `daemon` at a URL (with a key), or else by loading the model; kept in the data folder.

    Raises `HomeAIError`.
    """
    if daemon is not None:
        points, machine = _of_daemon(path, *daemon, rounds), f"the daemon at {daemon[0]}"
    elif steps is not None:
        points, machine = _common(points_of(load_steps(steps))), steps.name
    else:
        points, machine = _of_machine(config, path, rounds, on_progress), _machine(config)
    found = solve(architecture(path, None, {}), points, file=path.name, machine=machine)
    found.save(config.data_dir / CALIBRATION_FILE)
    return found


def calibration_of(config: Config, path: Path) -> Calibration | None:
    """What this machine reaches with that file, if it was calibrated."""
    found = _any_calibration(config)
    return found if found is not None and found.file == path.name else None


def _any_calibration(config: Config) -> Calibration | None:
    path = config.data_dir / CALIBRATION_FILE
    return Calibration.load(path) if path.exists() else None


def _common(points: Sequence[Point]) -> list[Point]:
    """Prompts alone, each of its own length, and other shapes that were seen often: one step in a log may be any."""
    return [
        point
        for point in points
        if point.num_steps >= MIN_SAMPLES or (point.num_prefill_tokens and not point.num_decode_tokens)
    ]


def _of_machine(config: Config, path: Path, rounds: int, on_progress: Callable[[float], None]) -> list[Point]:
    from homeai.server.child import ENGINE_ENVIRONMENT
    from homeai.server.launch import engine_config

    os.environ.update(ENGINE_ENVIRONMENT | dict(os.environ))  # before llama.cpp's threads read it
    from homeai.evaluation.plan.measure import StepMeter

    meter = StepMeter(engine_config(config, path), max(ROWS))
    try:
        return points_of(meter.steps(ROWS, PROMPTS, rounds, lambda done, total: on_progress(done / total)))
    finally:
        meter.close()


def _of_daemon(path: Path, url: str, key: str | None, rounds: int) -> list[Point]:
    from homeai.console import DaemonClient
    from homeai.evaluation.plan.measure_daemon import DaemonMeter

    served = DaemonClient(url, key).status().model.file
    if served != path.name:
        raise ConfigError(f"the daemon at {url} serves {served}, the plan is for {path.name}: name that file")
    return DaemonMeter(url, key).points([rows for rows in ROWS if rows <= MANY_ROWS], PROMPTS, rounds)


def _machine(config: Config) -> str:
    from homeai.hardware import MachineProbe, num_physical_cores

    gpu = MachineProbe().gpu() if config.model.device != "cpu" else None
    num_threads = config.model.num_threads or num_physical_cores()
    return gpu.name if gpu is not None else f"{num_threads} CPU core{'s' if num_threads > 1 else ''}"
