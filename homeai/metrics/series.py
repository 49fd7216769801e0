"""Makes the series of one registry. Those whose labels are all known are there from the start: a rate is one only when
what it begins at was seen."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram

PREFIX: Final = "homeai_"

Buckets = tuple[float, ...]

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # families that nobody reads


class Series:
    """`classes`: the fairness classes, which label what tells how somebody was served."""

    def __init__(self, classes: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self._classes = tuple(classes)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def counter_by(self, name: str, text: str, label: str, values: Iterable[str]) -> Counter:
        made = self.counter(name, text, label)
        for value in values:
            made.labels(value)
        return made

    def counter_of_class(self, name: str, text: str, label: str | None = None, values: Iterable[str] = ()) -> Counter:
        """By class, and by one more label if it is given."""
        if label is None:
            return self.counter_by(name, text, "class", self._classes)
        made = self.counter(name, text, "class", label)
        for fairness_class, value in product(self._classes, values):
            made.labels(fairness_class, value)
        return made

    def histogram(self, name: str, text: str, buckets: Buckets) -> Histogram:
        return Histogram(PREFIX + name, text, buckets=buckets, registry=self.registry)

    def histogram_of_class(self, name: str, text: str, buckets: Buckets) -> Histogram:
        made = Histogram(PREFIX + name, text, ("class",), buckets=buckets, registry=self.registry)
        for fairness_class in self._classes:
            made.labels(fairness_class)
        return made
