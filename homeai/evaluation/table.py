"""A comparison of runs as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from homeai.evaluation.summary import ClassSummary, Summary

NOTE = Text(
    "wasted rows: seats left empty while somebody waited. share / due: of the service that classes competed for, "
    "what one got and what its weight promises.",
    style="dim",
)
CLASS_ORDER = ("voice", "interactive", "coding", "background")


def render(title: str, cost_label: str, summaries: Mapping[str, Summary]) -> RenderableType:
    """`summaries` by mode. `cost_label` says how step times were come by."""
    heading = Text(title, style="bold")
    return Group(heading, Text(f"step times: {cost_label}\n"), _overall(summaries), "", _classes(summaries), NOTE)


def _overall(summaries: Mapping[str, Summary]) -> Table:
    table = _table("mode", "tok/s", "busy", "rows", "wasted\nrows", "parked", "cached\ntokens", "recom-\nputed", "Jain")
    for mode, summary in summaries.items():
        table.add_row(
            mode,
            f"{summary.tokens_per_s:.1f}",
            f"{summary.busy:.0%}",
            f"{summary.mean_rows:.1f}",
            f"{summary.wasted_row_steps:,}",
            f"{summary.num_preemptions:,}",
            f"{summary.num_cached_tokens:,}",
            f"{summary.num_recomputed_tokens:,}",
            "–" if summary.jain is None else f"{summary.jain:.2f}",
        )
    return table


def _classes(summaries: Mapping[str, Summary]) -> Table:
    latencies = ("TTFT\np50", "TTFT\np95", "TPOT\np50", "ITL\np95", "ITL\nmax", "e2e\np95", "queue\np95")
    table = _table("seconds", *latencies, "share\n/ due", "done")
    names = {name for summary in summaries.values() for name in summary.classes}
    for name in sorted(names, key=_class_order):
        table.add_row(Text(name, style="bold"))
        for mode, summary in summaries.items():
            if name in summary.classes:
                table.add_row(f"  {mode}", *_class_row(summary.classes[name]))
    table.add_row(Text("all", style="bold"))
    for mode, summary in summaries.items():
        table.add_row(f"  {mode}", *_class_row(summary.overall))
    return table


def _class_row(c: ClassSummary) -> list[str]:
    return [
        *(_seconds(value) for value in (c.ttft_p50, c.ttft_p95, c.tpot_p50, c.itl_p95, c.itl_max)),
        *(_seconds(value) for value in (c.e2e_p95, c.queue_p95)),
        "–" if c.share is None or c.weight_share is None else f"{c.share * 100:.0f}/{c.weight_share * 100:.0f}%",
        _ends(c),
    ]


def _ends(c: ClassSummary) -> str:
    """How many got all they asked for; why the others did not."""
    others = ((c.num_cancelled, "left"), (c.num_timed_out, "timed out"), (c.num_refused, "too long"))
    return ", ".join([f"{c.num_completed}/{c.num_requests}", *(f"{count} {why}" for count, why in others if count)])


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in ("mode", "seconds", "done") else "right", no_wrap=True)
    return table


def _seconds(value: float | None) -> str:
    """Three figures, and never fewer than whole milliseconds."""
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 1 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _class_order(name: str) -> tuple[int, str]:
    return (CLASS_ORDER.index(name) if name in CLASS_ORDER else len(CLASS_ORDER), name)
