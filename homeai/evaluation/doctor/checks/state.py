"""The daemon answers, and the model is not served; or its engine keeps dying; or it has something to say."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from homeai.evaluation.doctor.checks.memory import CHANGED, FEWER_LAYERS, NO_ROOM
from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding, Severity
from homeai.evaluation.doctor.words import seconds, span

LONG_LOAD_S: Final = 60.0


def check(facts: Facts) -> Finding | None:
    status = facts.status
    if status is None or (status.failure and NO_ROOM.search(status.failure)):
        return None  # told by `memory`
    if status.state == "failed":
        return Finding(
            check="failed",
            title="The model cannot be served",
            evidence=[
                f"state failed, wanted {status.residency.wanted}: {status.failure}",
                f"file: {status.model.file}",
            ],
            cause=status.failure or "The engine ended, and gave no reason.",
            advice=["Put that right, then `homeai load`; `homeai reload MODEL` takes another model."],
        )
    if status.state in ("loading", "warming") and (
        status.failure or (status.uptime_s > LONG_LOAD_S and _never_up(facts))
    ):
        return Finding(
            check="not-ready",
            title="The model is not ready, and should be",
            evidence=[
                f"state {status.state} {seconds(status.uptime_s)} after the start; "
                f"{status.failure or 'no failure told'}"
            ],
            cause=status.failure or "It loads for longer than a minute.",
            advice=[
                "A device that is missing or full is looked at again by itself; `homeai status` shows the progress."
            ],
        )
    return None


def check_deaths(facts: Facts) -> Finding | None:
    """From resident to loading without leaving on purpose, by the ledger's events."""
    states = [event for event in facts.events if event.kind == "state"]
    deaths = [after for before, after in pairwise(states) if (before.detail, after.detail) == ("resident", "loading")]
    if not deaths:
        return None
    times = "1 time" if len(deaths) == 1 else f"{len(deaths)} times"
    return Finding(
        check="engine-died",
        title="The engine died",
        evidence=[
            f"{times} in {span(facts.hours)}, by the ledger's events (none is usual); the last time "
            f"{seconds(max(0.0, facts.at - deaths[-1].at))} ago"
        ],
        cause="A crash of llama.cpp or its driver, or something killed the process (the system, when memory runs out).",
        advice=[
            "Answers went on in the next engine. The log says what the last words were: `journalctl -u homeai | "
            "grep died`; `dmesg | grep -iE 'oom|xid|segfault'` what the system did."
        ],
    )


def check_notes(facts: Facts) -> Finding | None:
    notes = [n for n in (facts.status.notes if facts.status else ()) if not (CHANGED.match(n) or FEWER_LAYERS.match(n))]
    notes = [note for note in notes if not note.startswith(("paused", "class"))]
    if not notes:
        return None
    return Finding(
        check="notes",
        title="The daemon has something to say",
        evidence=notes,
        cause="It goes on, but not quite as its settings ask for.",
        advice=["The same is on the status page and in the log; what helps is said there."],
        severity=Severity.HINT,
    )


def _never_up(facts: Facts) -> bool:
    return facts.status is not None and facts.status.residency.num_loads == 0
