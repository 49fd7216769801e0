"""Puts a bench together from what its owner asked for, and plays it. What the command line calls."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from homeai import __version__, config
from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation.bench import agenda, daemon, groups, own, targets
from homeai.evaluation.bench.agenda import Loads
from homeai.evaluation.bench.conditions import Changed
from homeai.evaluation.bench.groups import Sizes
from homeai.evaluation.bench.overlap import overlap_share
from homeai.evaluation.bench.records import CallRecord, Play
from homeai.evaluation.bench.rows import Aims, Findings, Overlap, Row
from homeai.evaluation.bench.run import Bench, Variant, Watcher
from homeai.evaluation.bench.score import Prices
from homeai.evaluation.bench.store import Store
from homeai.evaluation.bench.targets import Asking, Simulation, Target
from homeai.evaluation.bench.trace import Trace
from homeai.evaluation.cost_model import StepCost

DAY_S: Final = 86_400.0
Overrides = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What to bench. `urls`: servers that run already. `model`: of the bench's own daemons. `cost`: simulate instead.

    `settings` hold for every own daemon, `changed` says what each variant changes; own daemons and simulations only.
    """

    trace: Trace
    loads: Loads
    aims: Aims
    prices: Prices
    command: str
    urls: Sequence[str] = ()
    model: Path | None = None
    config_path: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cost: StepCost | None = None
    settings: Overrides = ()
    changed: Sequence[Changed] = (Changed(),)
    asking: Asking = field(default_factory=Asking)
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 11
    salt: str | None = None
    num_rounds: int = 1
    own_overlap: Overlap | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    target: Target
    start_s: float | None = None


async def bench(wish: Wish, loaded: Config, store: Store | None, watcher: Watcher) -> Findings:
    """What was found; what was played so far is in `store` even when the bench is broken off."""
    findings = Findings(
        bench_id=datetime.now().strftime("%Y%m%d-%H%M%S"),
        started_at=time.time(),
        command=wish.command,
        version=__version__,
        trace_name=wish.trace.name,
        trace_version=wish.trace.version,
        num_calls=len(wish.trace.calls),
        duration_s=wish.trace.duration_s,
        seed=wish.seed,
        salt=wish.salt or secrets.token_hex(3),
        num_rounds=wish.num_rounds,
        aims=wish.aims,
        prices=wish.prices,
        weights={name: each.weight for name, each in loaded.classes.items()},
        own_overlap=wish.own_overlap,
    )
    keeper = _Keeper(findings, wish.trace, store, watcher)
    await Bench(findings, wish.trace, wish.sizes, wish.loads, variants_of(wish), keeper).run()
    keeper.save()
    return findings


def variants_of(wish: Wish) -> list[Variant]:
    if wish.cost is not None:
        return [_simulated(wish, wish.cost, changed) for changed in wish.changed]
    if wish.model is not None:
        own_ones = [_own_daemon(wish, wish.model, changed) for changed in wish.changed]
        return own_ones + [_reached(wish, url, is_first=False) for url in wish.urls]
    return [_reached(wish, url, is_first=index == 0) for index, url in enumerate(wish.urls)]


def trace_of_ledger(path: Path, days: float, *, hides_names: bool, longest_s: float | None) -> tuple[Trace, Overlap]:
    """The busiest window of the own house that is no longer than `longest_s`, and how much overlaps in all of it."""
    rows = own.read(path, days * DAY_S, time.time())
    trace = own.trace_of(rows, hides_names=hides_names)
    spans = own.overlap_of(rows)
    overlap = Overlap(overlap_share(spans), num_requests=len(spans), days=days)
    return (trace if longest_s is None else own.busiest(trace, longest_s)), overlap


def synthetic(seed: int, duration_s: float, names: Sequence[str], rate: float, sizes: Sizes) -> Trace:
    """The request groups in one trace. Raises `ConfigError` when it is too short for a single call."""
    trace = groups.household(seed, duration_s, groups=tuple(names) or groups.GROUPS, rate=rate, sizes=sizes)
    if not trace.calls:
        raise ConfigError(f"--duration {duration_s:g}, --rate {rate:g}: nobody asks for anything in so short a time")
    return trace


def check(wish: Wish) -> None:
    """Every variant's settings, before the first one is measured. Raises `ConfigError`."""
    for changed in wish.changed if wish.model is not None or wish.cost is not None else ():
        config.load(wish.config_path, env=wish.env, overrides=[*wish.settings, *changed.settings.items()])


def loads_of(rates: Sequence[float], spike: float | None, overlaps: Sequence[int]) -> Loads:
    return agenda.Loads.checked(rates, spike, overlaps)


# ---- variants --------------------------------------------------------------------------------------------


def _simulated(wish: Wish, cost: StepCost, changed: Changed) -> Variant:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Opened]:
        overrides = [*wish.settings, *changed.settings.items()]
        loaded = config.load(wish.config_path, env=wish.env, overrides=overrides)
        yield Opened(Simulation(loaded, cost, dict(overrides)))

    return Variant("simulation", changed, opened)


def _own_daemon(wish: Wish, model: Path, changed: Changed) -> Variant:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Opened]:
        settings = dict(wish.settings) | changed.settings
        async with (
            daemon.serving(model, wish.config_path, settings, wish.trace.classes) as started,
            targets.connected(
                started.url, wish.asking, settings=settings, pid=started.pid, ledger=started.ledger
            ) as server,
        ):
            yield Opened(server, started.start_s)

    return Variant("homeai", changed, opened)


def _reached(wish: Wish, url: str, *, is_first: bool) -> Variant:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Opened]:
        async with targets.connected(url, wish.asking) as server:
            yield Opened(server, server.load_s)

    return Variant(url, Changed(target=not is_first), opened)


class _Keeper:
    """Writes down what was played, and tells who looks on."""

    def __init__(self, findings: Findings, trace: Trace, store: Store | None, watcher: Watcher) -> None:
        self._findings = findings
        self._trace = trace
        self._store = store
        self._watcher = watcher

    def save(self) -> None:
        if self._store is not None:
            self._store.save(self._findings, self._trace)

    def begins(self, expected_s: float) -> None:
        self._watcher.begins(expected_s)

    def starts(self, variant: str) -> None:
        self._watcher.starts(variant)

    def plays(self, row: Row, round_number: int, num_calls: int, expected_s: float) -> None:
        self._watcher.plays(row, round_number, num_calls, expected_s)

    def answered(self, record: CallRecord) -> None:
        self._watcher.answered(record)

    def skips(self, row_label: str, expected_s: float) -> None:
        self._watcher.skips(row_label, expected_s)

    def played(self, row: Row, round_number: int, play: Play) -> None:
        if self._store is not None:
            self._store.save_play(self._findings, row, round_number, play)
        self.save()
        self._watcher.played(row, round_number, play)
