"""Findings for people in a terminal, and for programs."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from homeai.config_reading import Tree, merged, nested, parse_value
from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding, Severity
from homeai.evaluation.doctor.words import seconds, span

HEALTHY, FOUND, NOT_EXAMINED = 0, 1, 2  # exit codes
STYLES = {Severity.TROUBLE: "bold red", Severity.HINT: "bold yellow"}


class Report(msgspec.Struct, frozen=True):
    """`verdict`: healthy, findings or not_examined. `looked_at`: what the findings come from, or their absence."""

    verdict: str
    url: str
    looked_at: list[str]
    not_looked_at: list[str]
    findings: list[Finding]
    problem: str | None = None


def exit_code(facts: Facts, findings: list[Finding]) -> int:
    """2: nothing answers, and no cause of that was found."""
    if findings:
        return FOUND
    return NOT_EXAMINED if facts.silence is not None else HEALTHY


def report(facts: Facts, findings: list[Finding]) -> Report:
    verdict = {HEALTHY: "healthy", FOUND: "findings", NOT_EXAMINED: "not_examined"}[exit_code(facts, findings)]
    silence = f"{facts.silence.why}: {facts.silence.detail}" if facts.silence else None
    return Report(verdict, facts.url, looked_at(facts), list(facts.gaps), findings, silence)


def as_json(facts: Facts, findings: list[Finding]) -> str:
    return msgspec.json.format(msgspec.json.encode(report(facts, findings))).decode()


def looked_at(facts: Facts) -> list[str]:
    lines = []
    status, window, machine = facts.status, facts.window, facts.machine
    if status is not None:
        model = status.model.name or status.model.file
        lines.append(
            f"{model} on {status.model.device or 'no device'}: {status.state}, up for {seconds(status.uptime_s)}"
        )
    if window is not None:
        lines.append(
            f"the last {span(window.num_samples / 3600)}: {seconds(window.busy_s)} with requests, "
            f"{window.num_steps:,} steps, at most {window.max_running} running and {window.max_waiting} waiting"
        )
    if status is not None and machine is not None:
        lines.append(f"{len(facts.rows):,} requests in the ledger, of the last {span(facts.hours)}")
    if machine is not None:
        cards = ", ".join(machine.graphics.on_bus) or "no NVIDIA GPU"
        lines.append(f"this machine: {machine.num_cpus} CPUs, {cards}, {len(machine.units)} systemd units of homeai")
    return lines


def render(facts: Facts, findings: list[Finding]) -> RenderableType:
    parts: list[RenderableType] = [Text(f"looked at  {line}", style="dim") for line in looked_at(facts)]
    parts += [Text(f"not seen   {gap}", style="yellow") for gap in facts.gaps]
    for number, finding in enumerate(findings, 1):
        parts += [Text(), _finding(number, finding)]
    parts += [Text(), _end(facts, findings)]
    return Group(*parts)


def yaml_lines(finding: Finding) -> str:
    """The lines to change, as the configuration file has them."""
    import yaml

    tree: Tree = {}
    for key, value in finding.settings.items():
        tree = merged(tree, nested(key.split("."), parse_value(value)))
    return str(yaml.safe_dump(tree, sort_keys=False, width=1000, allow_unicode=True)).rstrip() if tree else ""


def _finding(number: int, finding: Finding) -> RenderableType:
    head = Text.assemble((f"{number}. {finding.title}", STYLES[finding.severity]), (f"   [{finding.check}]", "dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for index, line in enumerate(finding.evidence):
        table.add_row("" if index else "evidence", Text(line))
    table.add_row("cause", Text(finding.cause))
    for index, line in enumerate(finding.advice):
        table.add_row("" if index else "change", Text(line))
    if lines := yaml_lines(finding):
        table.add_row("settings", Text(lines, style="cyan"))
    return Group(head, Padding(table, (0, 0, 0, 3)))


def _end(facts: Facts, findings: list[Finding]) -> Text:
    if findings:
        troubles = sum(finding.severity is Severity.TROUBLE for finding in findings)
        return Text(f"{troubles} in trouble, {len(findings) - troubles} hints", style="bold")
    if facts.silence is not None:
        return Text(
            f"nothing could be examined: {facts.url}: {facts.silence.why} ({facts.silence.detail})", style="bold red"
        )
    return Text("healthy: nothing found", style="bold green")
