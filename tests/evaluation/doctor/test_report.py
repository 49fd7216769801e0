"""What is printed, and how the command ends."""

from __future__ import annotations

import json

from rich.console import Console

from homeai.evaluation.doctor.checks import CHECKS, examine
from homeai.evaluation.doctor.facts import Quiet, Silence
from homeai.evaluation.doctor.finding import Finding, Severity
from homeai.evaluation.doctor.report import as_json, exit_code, render, yaml_lines
from tests.evaluation.doctor.factories import create_facts, create_row, create_status

FINDING = Finding(
    check="admission",
    title="Requests wait",
    evidence=["3 of 4"],
    cause="too few seats",
    advice=["more"],
    settings={"scheduler.max_num_seqs": "16", "scheduler.mode": "auto", "classes.voice.max_waiting": "4"},
)


def text_of(*findings: Finding, **facts: object) -> str:
    console = Console(width=100, force_terminal=False)
    with console.capture() as capture:
        console.print(render(create_facts(**facts), list(findings)))
    return capture.get()


def test_healthy_facts_have_no_finding() -> None:
    assert examine(create_facts(rows=[create_row(10.0 * i) for i in range(100)])) == []


def test_checks_that_know_nothing_say_nothing() -> None:
    nothing = create_facts(status=None, vitals=None, config=None, machine=None)
    assert [check for check in CHECKS if check(nothing) is not None] == []


def test_exit_code_tells_healthy_findings_and_not_examined_apart() -> None:
    silent = create_facts(silence=Silence(Quiet.LOCKED, "HTTP 401"))
    assert [exit_code(create_facts(), []), exit_code(create_facts(), [FINDING]), exit_code(silent, [])] == [0, 1, 2]
    assert exit_code(silent, [FINDING]) == 1  # why it is silent is found


def test_evidence_cause_change_and_settings_are_shown() -> None:
    text = text_of(FINDING)
    for part in ("1. Requests wait", "[admission]", "3 of 4", "too few seats", "more", "max_num_seqs: 16"):
        assert part in text
    assert "healthy: nothing found" in text_of()
    assert "not seen   /metrics" in text_of(gaps=["/metrics: HTTP 401"])
    assert "it wants an API key" in text_of(silence=Silence(Quiet.LOCKED, "HTTP 401"))


def test_settings_are_lines_of_the_configuration() -> None:
    assert yaml_lines(FINDING).splitlines() == [
        "scheduler:",
        "  max_num_seqs: 16",
        "  mode: auto",
        "classes:",
        "  voice:",
        "    max_waiting: 4",
    ]


def test_troubles_come_before_hints() -> None:
    facts = create_facts(status=create_status(state="failed", failure="broken", notes=["a note"]))
    assert [finding.severity for finding in examine(facts)] == [Severity.TROUBLE, Severity.HINT]


def test_json_has_everything_for_programs() -> None:
    report = json.loads(as_json(create_facts(gaps=["the ledger"]), [FINDING]))
    assert report["verdict"] == "findings"
    assert report["not_looked_at"] == ["the ledger"]
    (finding,) = report["findings"]
    assert (finding["check"], finding["severity"]) == ("admission", "trouble")
    assert finding["settings"]["scheduler.max_num_seqs"] == "16"
