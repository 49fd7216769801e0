"""What a bench found: a row for each setting and load, with a score per round. Values only."""

from __future__ import annotations

from typing import Literal

import msgspec

from homeai.evaluation.bench.conditions import Changed, Conditions
from homeai.evaluation.bench.score import Prices, Score, median_of

Kind = Literal["rate", "spike", "overlap"]


class Load(msgspec.Struct, frozen=True):
    """`value`: how many times the trace's own rate, how many times that in the spike, or how many calls at once."""

    kind: Kind
    value: float

    @property
    def label(self) -> str:
        match self.kind:
            case "rate":
                return f"rate × {self.value:g}"
            case "spike":
                return f"spike × {self.value:g}"
            case _:
                return f"{self.value:g} at once"


class Row(msgspec.Struct, kw_only=True):
    """`id` is what the verdict cites. `variant` names target and setting together."""

    id: str
    target: str
    changed: Changed
    load: Load
    scores: list[Score] = []

    @property
    def variant(self) -> str:
        if not self.changed.target:
            return self.changed.label
        return f"{self.target}: {self.changed.label}" if self.changed.settings else self.target

    @property
    def score(self) -> Score:
        return median_of(self.scores)


class Aims(msgspec.Struct, frozen=True, kw_only=True):
    """What is good enough, at p95, for calls that somebody waits for (all classes but background). Seconds; None: any.

    `error_rate`: of all calls, rejected or failed.
    """

    ttft_s: float | None = 2.0
    queue_s: float | None = None
    e2e_s: float | None = None
    error_rate: float = 0.01


class Flag(msgspec.Struct, frozen=True):
    """Why a variant is not tabled beside the base line."""

    variant: str
    problems: list[str]


class Overlap(msgspec.Struct, frozen=True):
    """`share`: of the time with work, the part with more than one request. `rows` it comes from, or the ledger."""

    share: float
    rows: list[str] = []
    num_requests: int = 0
    days: float = 0.0


class Findings(msgspec.Struct, kw_only=True):
    """All of one bench. `conditions` and `start_s` by variant, the base line first; `memory` in bytes, by part."""

    bench_id: str
    started_at: float  # Unix time
    command: str
    version: str
    trace_name: str
    trace_version: str
    num_calls: int
    duration_s: float
    seed: int
    salt: str
    num_rounds: int
    aims: Aims
    prices: Prices
    weights: dict[str, float]
    conditions: dict[str, Conditions] = {}
    rows: list[Row] = []
    flags: list[Flag] = []
    notes: list[str] = []
    start_s: dict[str, float] = {}
    memory: dict[str, dict[str, int]] = {}
    own_overlap: Overlap | None = None


def misses(score: Score, aims: Aims) -> list[str]:
    """Which aims are not met, with both numbers. A latency that nobody had is no miss; an answer nobody got is."""
    attended, figures = score.attended, score.figures
    pairs = (
        ("TTFT p95", attended.ttft_p95, aims.ttft_s),
        ("queue p95", figures.queue_p95, aims.queue_s),
        ("e2e p95", attended.e2e_p95, aims.e2e_s),
    )
    problems = [
        f"{name} {value:.2f} s, wanted {aim:g} s"
        for name, value, aim in pairs
        if value is not None and aim is not None and value > aim
    ]
    if figures.error_rate > aims.error_rate:
        problems.append(f"{figures.error_rate:.1%} errors, wanted {aims.error_rate:.1%}")
    return problems


def excess(score: Score, aims: Aims) -> float:
    """How many times the worst figure is over its aim; up to 1: all are met."""
    attended, figures = score.attended, score.figures
    pairs = (
        (attended.ttft_p95, aims.ttft_s),
        (figures.queue_p95, aims.queue_s),
        (attended.e2e_p95, aims.e2e_s),
        (figures.error_rate, max(aims.error_rate, 1e-3)),
    )
    return max(value / aim for value, aim in pairs if value is not None and aim is not None)
