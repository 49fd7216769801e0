"""What is read of a server beside its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from homeai.evaluation.bench.power import _rapl
from homeai.evaluation.bench.watch import counted, quantile, series
from homeai.ledger import LedgerRow
from homeai.metrics import Metrics


def finished(metrics: Metrics, queue_s: float) -> None:
    metrics.observe_finished(
        LedgerRow(
            request_id="r",
            arrival=0.0,
            api="/v1/completions",
            source="a",
            fairness_class="voice",
            model="m",
            queue_s=queue_s,
            status=200,
            finish_reason="stop",
            num_recomputed_tokens=3,
        )
    )


def test_counters_are_what_came_since_then() -> None:
    metrics = Metrics()
    finished(metrics, 100.0)
    before = series(metrics.render().decode())
    for _ in range(20):
        finished(metrics, 0.4)
    grown = counted(before, series(metrics.render().decode()))
    assert grown["num_recomputed_tokens"] == 60
    assert grown["num_preemptions"] == 0
    queue_p95 = grown["queue_p95_s"]
    assert queue_p95 is not None
    assert 0.25 < queue_p95 <= 0.5  # the bucket; the first one waited before


def test_server_without_metrics_counts_nothing() -> None:
    assert counted({}, {}) == {}


def test_quantile_lies_on_a_line_within_its_bucket() -> None:
    assert quantile({1.0: 0, 2.0: 10, float("inf"): 10}, 0.5) == pytest.approx(1.5)
    assert quantile({1.0: 0, float("inf"): 4}, 0.95) == 1.0
    assert quantile({}, 0.95) is None


def test_energy_counter_that_starts_over_goes_on(tmp_path: Path) -> None:
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("10000000")
    (package / "energy_uj").write_text("9000000")
    found = _rapl(tmp_path)
    assert found is not None
    _, meter = found
    assert meter() == pytest.approx(9.0)
    (package / "energy_uj").write_text("1000000")
    assert meter() == pytest.approx(11.0)


def test_energy_that_may_not_be_read_is_none(tmp_path: Path) -> None:
    assert _rapl(tmp_path) is None
