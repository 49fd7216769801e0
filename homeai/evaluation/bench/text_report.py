"""A bench's report in the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from homeai.evaluation.bench import conditions
from homeai.evaluation.bench.figures import Grid, facts, grids
from homeai.evaluation.bench.rows import Findings
from homeai.evaluation.bench.verdict import Verdict, config_lines

NOTE = (
    "Latencies in seconds, of all classes but background; of several rounds the medians. "
    "left: clients that went, as the trace says. share / due: of the service that classes competed for."
)


class Document(msgspec.Struct, frozen=True):
    """The JSON report."""

    findings: Findings
    verdict: Verdict


def render(findings: Findings, verdict: Verdict) -> RenderableType:
    """For a terminal."""
    parts: list[RenderableType] = [Text(f"bench {findings.bench_id}", style="bold"), _facts(findings), ""]
    for grid in grids(findings):
        parts += [Text(grid.title, style="bold"), _table(grid), ""]
    for flag in findings.flags:
        parts.append(Text(f"not compared, {flag.variant}: {'; '.join(flag.problems)}", style="yellow"))
    parts += [Text(note, style="dim") for note in (*findings.notes, NOTE)]
    parts += ["", Text("Verdict", style="bold"), Text(str(verdict.headline), style="bold green")]
    parts += [Text(f"• {sentence}") for sentence in verdict.sentences]
    if verdict.gain:
        parts.append(Text(f"• {verdict.gain}"))
    if verdict.settings:
        parts += [Text("\nIn the configuration:", style="bold"), Text(config_lines(verdict.settings), style="cyan")]
    return Group(*parts)


def markdown(findings: Findings, verdict: Verdict) -> str:
    return "\n".join(_markdown(findings, verdict)) + "\n"


def as_json(findings: Findings, verdict: Verdict) -> bytes:
    return msgspec.json.format(msgspec.json.encode(Document(findings, verdict))) + b"\n"


def _markdown(findings: Findings, verdict: Verdict) -> Iterator[str]:
    yield f"# Bench {findings.bench_id}"
    yield ""
    yield "## Verdict"
    yield ""
    yield f"**{verdict.headline}**"
    yield ""
    for sentence in (*verdict.sentences, *([verdict.gain] if verdict.gain else [])):
        yield f"- {sentence}"
    if verdict.settings:
        yield from ("", "```yaml", config_lines(verdict.settings), "```")
    for grid in grids(findings):
        yield from ("", f"## {grid.title}", "", *_lines(grid))
    yield from ("", NOTE)
    yield from ("", "## Conditions", "")
    yield from _lines(Grid("", ["", "value"], [list(fact) for fact in facts(findings)]))
    names = list(findings.conditions)
    rows = [[field, *values] for field, values in conditions.table(list(findings.conditions.values())).items()]
    yield from ("", *_lines(Grid("", ["", *names], rows)))
    for flag in findings.flags:
        yield from ("", f"Not compared, {flag.variant}: {'; '.join(flag.problems)}.")
    for note in findings.notes:
        yield from ("", note)


def _lines(grid: Grid) -> Iterator[str]:
    yield _line(grid.header)
    yield "|" + "---|" * len(grid.header)
    for row in grid.rows:
        yield _line(row)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _facts(findings: Findings) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in facts(findings):
        table.add_row(Text(name, style="dim"), Text(value))
    for variant, each in findings.conditions.items():
        known = f"{each.server}, {each.model} ({each.quantisation}), context {each.context}, {each.hardware}"
        table.add_row(Text(variant, style="dim"), Text(known))
    return table


def _table(grid: Grid) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(grid.header):
        table.add_column(name.replace(" ", "\n", 1), justify="left" if index < 4 else "right")
    for row in grid.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
