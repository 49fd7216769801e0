"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homeai.evaluation.summary import percentile
from homeai.memory_plan import gib

__all__ = ["gib", "milliseconds", "percent", "quantiles", "seconds", "span"]


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def span(hours: float) -> str:
    return f"{60 * hours:.0f} min" if hours < 2 else f"{hours:.0f} h"


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
