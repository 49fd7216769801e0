"""All series of a daemon, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.registry import Collector

from homeai.ledger import LedgerRow
from homeai.messages import StepStats
from homeai.metrics.requests import RequestMetrics
from homeai.metrics.series import Series
from homeai.metrics.sources import SourceMetrics
from homeai.metrics.steps import StepMetrics

__all__ = ["CONTENT_TYPE", "Metrics"]


class Metrics:
    """One per daemon. `classes` and `sources`: the configured names. `token_weights`: what a computed prompt token and
    an output token count as service."""

    def __init__(
        self,
        classes: Iterable[str] = (),
        sources: Iterable[str] = (),
        token_weights: tuple[float, float] = (1.0, 2.0),
    ) -> None:
        series = Series(classes)
        self._requests = RequestMetrics(series)
        self._sources = SourceMetrics(series, sources, token_weights)
        self._steps = StepMetrics(series)
        self._registry = series.registry
        ProcessCollector(registry=series.registry)

    def observe_step(self, stats: StepStats) -> None:
        self._steps.stepped(stats)

    def observe_token_gap(self, fairness_class: str, seconds: float) -> None:
        self._requests.token_gap(fairness_class, seconds)

    def observe_rejected(self, fairness_class: str, reason: str) -> None:
        self._requests.rejected(fairness_class, reason)

    def observe_finished(self, row: LedgerRow) -> None:
        """A request that was accepted has ended, however it did."""
        self._requests.finished(row)
        self._sources.finished(row)

    def render(self, state: Iterable[Metric] = ()) -> bytes:
        """The body of /metrics, to be sent as `CONTENT_TYPE`. `state`: what is the case now, beside what happened."""
        return generate_latest(_Both(self._registry, state))


class _Both(Collector):
    def __init__(self, registry: CollectorRegistry, state: Iterable[Metric]) -> None:
        self._registry = registry
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
        yield from self._state
