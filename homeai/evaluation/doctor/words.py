"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from homeai.evaluation.summary import percentile
from homeai.memory_plan import gib

__all__ = ["gib", "milliseconds", "percent", "quantiles", "seconds", "span", "sparkline"]

BARS: Final = "▁▂▃▄▅▆▇█"


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def span(hours: float) -> str:
    if hours < 1 / 30:
        return f"{3600 * hours:.0f} s"
    return f"{60 * hours:.0f} min" if hours < 2 else f"{hours:.0f} h"


def sparkline(values: Sequence[float]) -> str:
    """Each value as a bar, the largest the highest; empty without any that is above zero."""
    most = max(values, default=0.0)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in values) if most > 0 else ""


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms"


def percent(part: float) -> str:
    return f"{part:.0%}"


def quantiles(values: Sequence[float] | Iterable[float]) -> str:
    """`p50 … · p95 … · max …`; durations in seconds."""
    known = list(values)
    median, high = percentile(known, 50), percentile(known, 95)
    if median is None or high is None:
        return "none"
    return f"p50 {seconds(median)} · p95 {seconds(high)} · max {seconds(max(known))}"
