"""The scoreboard as text: which columns, how a figure is written. Pure, for terminal, Markdown and HTML alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from homeai.evaluation.bench.rows import Findings, Kind, Row
from homeai.evaluation.bench.score import Latencies, Score

CLASS_ORDER: Final = ("voice", "interactive", "coding", "background")
TITLES: Final[Mapping[Kind, str]] = {"rate": "Offered rate", "spike": "Spike", "overlap": "At once"}
DASH: Final = "–"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: every row as long as `header`."""

    title: str
    header: list[str]
    rows: list[list[str]]


def grids(findings: Findings) -> list[Grid]:
    """All tables of a report: what was served, by load; what it took; by class and by group."""
    scores = {row.id: row.score for row in findings.rows}
    tables = [
        _grid(TITLES[kind], [row for row in findings.rows if row.load.kind == kind], scores, SERVED, findings)
        for kind in TITLES
    ]
    tables.append(_grid("What it took", findings.rows, scores, TAKEN, findings))
    normal = [row for row in findings.rows if row.load.kind == "rate" and row.load.value == 1]
    tables.append(_latencies("By class, at the trace's own rate", normal, scores, lambda score: score.classes))
    tables.append(_latencies("By group, at the trace's own rate", normal, scores, lambda score: score.groups))
    return [table for table in tables if table.rows]


def number(value: float | None) -> str:
    """Three figures."""
    if value is None:
        return DASH
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Never fewer than whole milliseconds."""
    if value is None:
        return DASH
    return f"{value:.3f}" if value < 1 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def size(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


Column = tuple[str, Callable[[Score], str]]

SERVED: Final[Sequence[Column]] = (
    ("offered req/s", lambda s: number(s.figures.offered_rps)),
    ("done req/s", lambda s: number(s.figures.completed_rps)),
    ("tok/s", lambda s: number(s.figures.tokens_per_s)),
    ("TTFT p50", lambda s: seconds(s.attended.ttft_p50)),
    ("TTFT p95", lambda s: seconds(s.attended.ttft_p95)),
    ("TPOT p50", lambda s: seconds(s.attended.tpot_p50)),
    ("ITL p95", lambda s: seconds(s.attended.itl_p95)),
    ("e2e p95", lambda s: seconds(s.attended.e2e_p95)),
    ("queue p95", lambda s: seconds(s.figures.queue_p95)),
    ("failed", lambda s: number(s.figures.num_failed)),
    ("rejected", lambda s: number(s.figures.num_rejected)),
    ("left", lambda s: number(s.figures.num_cancelled)),
    ("retries", lambda s: number(s.figures.num_retries)),
)
TAKEN: Final[Sequence[Column]] = (
    ("overlap", lambda s: percent(s.figures.overlap)),
    ("busy", lambda s: percent(s.figures.busy)),
    ("utilisation, halves", lambda s: f"{percent(s.figures.utilisation_1)} {percent(s.figures.utilisation_2)}"),
    ("tok/s, halves", lambda s: f"{number(s.figures.tokens_per_s_1)} {number(s.figures.tokens_per_s_2)}"),
    ("cached", lambda s: percent(s.figures.cached)),
    ("KV peak", lambda s: percent(s.figures.kv_peak)),
    ("preempted", lambda s: number(s.figures.num_preemptions)),
    ("evicted", lambda s: number(s.figures.num_evictions)),
    ("no room", lambda s: number(s.figures.num_out_of_room)),
    ("restarts", lambda s: number(s.figures.num_restarts)),
    ("RSS peak", lambda s: size(s.figures.rss_peak)),
    ("GPU peak", lambda s: size(s.figures.gpu_peak)),
    ("Jain", lambda s: number(s.figures.jain)),
    ("J/token", lambda s: number(s.figures.joules_per_token)),
    ("busy s/answer", lambda s: seconds(s.figures.busy_s_per_answer)),
    ("cost/answer", lambda s: DASH if s.figures.cost is None else f"{s.figures.cost:.3g}"),
)


def _grid(
    title: str, rows: Sequence[Row], scores: Mapping[str, Score], columns: Sequence[Column], findings: Findings
) -> Grid:
    """Columns that nobody has a value for are left out; so is the target, when there is one only."""
    columns = [column for column in columns if any(column[1](scores[row.id]).strip(f"{DASH} ") for row in rows)]
    names = _names(findings)
    return Grid(
        title,
        ["row", *(["target"] if names else []), "changed", "load", *(name for name, _ in columns)],
        [
            [
                row.id,
                *([row.target] if names else []),
                row.changed.label,
                row.load.label,
                *(read(scores[row.id]) for _, read in columns),
            ]
            for row in rows
        ],
    )


def _latencies(
    title: str, rows: Sequence[Row], scores: Mapping[str, Score], of: Callable[[Score], Mapping[str, Latencies]]
) -> Grid:
    header = ["", "row", "changed", "done", "TTFT p50", "TTFT p95", "TPOT p50", "ITL p95", "e2e p95", "share / due"]
    found = {name for row in rows for name in of(scores[row.id])}
    ordered = sorted(found, key=lambda name: (CLASS_ORDER.index(name) if name in CLASS_ORDER else 9, name))
    return Grid(
        title,
        header,
        [
            [name, row.id, row.variant, *_cells(of(scores[row.id])[name])]
            for name in ordered
            for row in rows
            if name in of(scores[row.id])
        ],
    )


def _cells(each: Latencies) -> list[str]:
    has_share = each.share is not None and each.weight_share is not None
    return [
        f"{each.num_completed:g}/{each.num_calls:g}",
        *(seconds(value) for value in (each.ttft_p50, each.ttft_p95, each.tpot_p50, each.itl_p95, each.e2e_p95)),
        f"{percent(each.share)} / {percent(each.weight_share)}" if has_share else DASH,
    ]


def _names(findings: Findings) -> bool:
    return len({row.target for row in findings.rows}) > 1


def facts(findings: Findings) -> list[tuple[str, str]]:
    """What was kept fixed, once for all variants."""
    aims = findings.aims
    wanted = [
        *([f"TTFT p95 ≤ {aims.ttft_s:g} s"] if aims.ttft_s is not None else []),
        *([f"queue p95 ≤ {aims.queue_s:g} s"] if aims.queue_s is not None else []),
        *([f"e2e p95 ≤ {aims.e2e_s:g} s"] if aims.e2e_s is not None else []),
        f"errors ≤ {aims.error_rate:.1%}",
    ]
    return [
        ("command", findings.command),
        ("homeai", findings.version),
        ("trace", f"{findings.trace_name}, {findings.num_calls} calls in {findings.duration_s:.0f} s"),
        ("trace's version", f"{findings.trace_version}, seed {findings.seed}, salt {findings.salt}"),
        ("rounds", str(findings.num_rounds)),
        ("wanted", f"{', '.join(wanted)}, for all classes but background"),
    ]
