"""What each source got. Clients choose the names of sources: `MAX_SOURCES` of them get series of their own, the
configured ones first, and the others share one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from homeai.ledger import LedgerRow
from homeai.metrics.series import Series

MAX_SOURCES: Final = 50
OTHERS: Final = "other"
LABELS: Final = ("source", "class")


class SourceMetrics:
    """`configured`: names. `token_weights`: what a computed prompt token and an output token count as service."""

    def __init__(self, series: Series, configured: Iterable[str], token_weights: tuple[float, float]) -> None:
        self._named = set(configured)
        self._prompt_weight, self._output_weight = token_weights
        self._requests = series.counter("source_requests", "Accepted requests that ended", *LABELS)
        self._service = series.counter(
            "source_service_tokens", "Computed prompt and output tokens, as fairness weighs them", *LABELS
        )
        self._queue = series.counter("source_queue_seconds", "Time between arrival and batch", *LABELS)

    def finished(self, row: LedgerRow) -> None:
        labels = (self._shown(row.source), row.fairness_class)
        num_computed = row.num_prompt_tokens - row.num_cached_tokens if row.ttft_s is not None else 0
        service = self._prompt_weight * num_computed + self._output_weight * row.num_output_tokens
        self._requests.labels(*labels).inc()
        self._service.labels(*labels).inc(service)
        self._queue.labels(*labels).inc(row.queue_s or 0.0)

    def _shown(self, source: str) -> str:
        if source not in self._named:
            if len(self._named) >= MAX_SOURCES:
                return OTHERS
            self._named.add(source)
        return source
