"""What a bench runs: variants (a target with settings), loads, rounds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from homeai.errors import ConfigError
from homeai.evaluation.bench import groups
from homeai.evaluation.bench.conditions import Changed
from homeai.evaluation.bench.groups import Sizes
from homeai.evaluation.bench.rows import Aims, Load, Row, misses
from homeai.evaluation.bench.trace import Trace

MODES: Final = ("continuous", "static", "window", "single")
RATES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
OVERLAPS: Final = (1, 2, 4, 8)
MIN_REPEATS: Final = 3  # of a replay at once
MIN_OVERLAP_CALLS: Final = 12
# One control at a time: values on both sides of the defaults. Each is changed alone.
CONTROLS: Final = (
    "scheduler.max_num_batched_tokens=256,1024",
    "scheduler.max_num_seqs=4,16",
    "scheduler.chunked_prefill=false",
    "classes.interactive.max_waiting=8",
    "scheduler.kv_cells=8192",
    "scheduler.kv_layout=partitioned",
)


@dataclass(frozen=True, slots=True)
class Loads:
    """`rates` are tried upwards, until one is too much. No spike without a factor, no overlap replay without counts."""

    rates: tuple[float, ...] = RATES
    spike: float | None = 4.0
    overlaps: tuple[int, ...] = OVERLAPS

    @classmethod
    def checked(cls, rates: Iterable[float], spike: float | None, overlaps: Iterable[int]) -> Loads:
        """In order, with the trace's own rate among them. Raises `ConfigError`."""
        ordered = tuple(sorted({1.0, *rates}))
        if ordered[0] <= 0:
            raise ConfigError(f"--rates {ordered[0]:g}: needs factors above 0")
        if spike is not None and spike <= 1:
            raise ConfigError(f"--spike {spike:g}: needs a factor above 1, or 0 for none")
        return cls(ordered, spike, tuple(sorted(set(overlaps))))


def variants(modes: Sequence[str], controls: Sequence[str]) -> list[Changed]:
    """The base line, and one for each mode and each value of a control. Raises `ConfigError`."""
    found = [Changed()]
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"--mode {mode}: known are {', '.join(MODES)}")
        found.append(Changed(settings={"scheduler.mode": mode}))
    for control in controls:
        key, equals, values = control.partition("=")
        if not equals or "." not in key or not values:
            raise ConfigError(f"--control {control}: needs the form section.key=value,value")
        found += [Changed(settings={key: value.strip()}) for value in values.split(",")]
    for one, other in pairwise(sorted(found, key=lambda each: each.label)):
        if one == other:
            raise ConfigError(f"{one.label} is given twice")
    return found


def played(trace: Trace, load: Load, seed: int, sizes: Sizes) -> Trace:
    """What is played for a load."""
    match load.kind:
        case "rate":
            return trace.faster(load.value)
        case "spike":
            return trace.spiked(load.value)
        case _:
            return groups.overlap(seed, int(load.value), sizes)


def is_too_much(row: Row, aims: Aims) -> bool:
    """No higher rate is worth trying: an aim is missed, or half of the requests are not done when they should be."""
    figures = row.score.figures
    return bool(misses(row.score, aims)) or figures.completed_rps < 0.5 * figures.offered_rps


def repeats_of(load: Load) -> int:
    """In a round. A replay at once is over in a second or two, and so short a time is as long as a machine's hiccup."""
    return max(MIN_REPEATS, math.ceil(MIN_OVERLAP_CALLS / load.value)) if load.kind == "overlap" else 1


def salt_of(bench_salt: str, load: Load, round_number: int, repeat: int = 0) -> str:
    """Other words for every load, round and repeat, the same for every variant."""
    return f"{bench_salt}{load.kind[0]}{load.value:g}r{round_number}" + (f".{repeat}" if repeat else "")
