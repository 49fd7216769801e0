"""The model's file was not in memory when it was loaded again: it came from the disk."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding, Severity
from homeai.evaluation.doctor.words import gib, percent, seconds

FROM_DISK: Final = 0.5  # of the model, read from storage
SLOW_S: Final = 20.0  # a first load that may be worth a word


def check(facts: Facts) -> Finding | None:
    status, io = facts.status, facts.vitals.engine_io if facts.vitals else None
    model_bytes = (status.model.size_bytes if status else None) or 0
    if status is None or io is None or io.read_bytes is None or not model_bytes:
        return None
    load_s = status.startup.total_s if status.startup else 0.0
    is_again = status.residency.num_loads > 1
    if io.read_bytes < FROM_DISK * model_bytes or not (is_again or load_s > SLOW_S):
        return None
    available = status.memory.available_bytes
    cause = (
        "The system dropped the file from its page cache while the model was away."
        if is_again
        else "It was the first load since the machine started, and the disk is what it waited for."
    )
    advice = [
        f"Keep {gib(model_bytes)} of memory free for it ({gib(available)} are available now), so that the file stays "
        "in the page cache; or keep the model loaded (residency.policy: pinned)."
    ]
    return Finding(
        check="page-cache",
        title="Loading the model read it from the disk",
        evidence=[
            f"the engine read {gib(io.read_bytes)} from storage, the model has {gib(model_bytes)} "
            f"({percent(io.read_bytes / model_bytes)}; up to {percent(FROM_DISK)} is usual)",
            f"the load took {seconds(load_s)}; it was number {status.residency.num_loads} since the daemon's start",
        ],
        cause=cause,
        advice=advice,
        settings={"residency.policy": "pinned"} if status.residency.policy != "pinned" else {},
        severity=Severity.TROUBLE if is_again else Severity.HINT,
    )
