"""A bench's report as one page that needs nothing else: tables, inline SVG, a few lines of CSS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from homeai.evaluation.bench import conditions
from homeai.evaluation.bench.figures import CLASS_ORDER, Grid, facts, grids
from homeai.evaluation.bench.plots import Axis, Line, plot
from homeai.evaluation.bench.records import Play
from homeai.evaluation.bench.rows import Findings
from homeai.evaluation.bench.text_report import NOTE
from homeai.evaluation.bench.verdict import Verdict, config_lines

CSS: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#59636e;--edge:#d1d9e0;--good:#1a7f37;
--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#cf222e;--c5:#9a6700;--c6:#0a7d91;--c7:#bf3989}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--edge:#3d444d;--good:#3fb950;
--c0:#4493f8;--c1:#f0883e;--c2:#3fb950;--c3:#ab7df8;--c4:#f85149;--c5:#d29922;--c6:#39c5cf;--c7:#f778ba}}
body{font:15px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg);max-width:75rem;margin:auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
.headline{font-size:1.15rem;border-left:4px solid var(--good);padding-left:.8rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;white-space:nowrap}
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--edge);text-align:right}
th{color:var(--dim);font-weight:600}td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}
table.facts td,table.facts th{text-align:left;white-space:normal}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem}
figure{margin:0;border:1px solid var(--edge);border-radius:6px;padding:.6rem}figcaption{font-weight:600}
svg{width:100%;height:auto}svg text{font-size:14px;fill:var(--dim)}.grid{stroke:var(--edge);fill:none}
.line{fill:none;stroke-width:2}.legend{list-style:none;padding:0;margin:0;font-size:.8rem}
.legend li{display:inline-block;margin-right:1rem}.legend li::before{content:"● "}
.c0{stroke:var(--c0);fill:var(--c0)}.c1{stroke:var(--c1);fill:var(--c1)}.c2{stroke:var(--c2);fill:var(--c2)}
.c3{stroke:var(--c3);fill:var(--c3)}.c4{stroke:var(--c4);fill:var(--c4)}.c5{stroke:var(--c5);fill:var(--c5)}
.c6{stroke:var(--c6);fill:var(--c6)}.c7{stroke:var(--c7);fill:var(--c7)}
li.c0{color:var(--c0)}li.c1{color:var(--c1)}li.c2{color:var(--c2)}li.c3{color:var(--c3)}
li.c4{color:var(--c4)}li.c5{color:var(--c5)}li.c6{color:var(--c6)}li.c7{color:var(--c7)}
path.line{fill:none}pre{border:1px solid var(--edge);border-radius:6px;padding:.6rem;overflow-x:auto}
"""


def page(findings: Findings, verdict: Verdict, normal: Play | None) -> str:
    """`normal`: the base line's play at the trace's own rate, for what is drawn call by call."""
    body = "\n".join(_body(findings, verdict, normal))
    title = f"homeai bench {escape(findings.bench_id)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{CSS}</style></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def _body(findings: Findings, verdict: Verdict, normal: Play | None) -> Iterator[str]:
    yield f'<p class="headline">{escape(str(verdict.headline))}</p><ul>'
    for sentence in (*verdict.sentences, *([verdict.gain] if verdict.gain else [])):
        yield f"<li>{escape(str(sentence))}</li>"
    yield "</ul>"
    if verdict.settings:
        yield f"<h2>In the configuration</h2><pre>{escape(config_lines(verdict.settings))}</pre>"
    yield '<h2>Plots</h2><div class="plots">'
    yield throughput_against_latency(findings)
    if normal is not None:
        yield ttft_distribution(normal)
        yield batch_timeline(normal)
    yield "</div>"
    for grid in grids(findings):
        yield f"<h2>{escape(grid.title)}</h2>{_table(grid)}"
    yield f"<p>{escape(NOTE)}</p>"
    yield "<h2>Conditions</h2>"
    yield _table(Grid("", ["", "value"], [list(fact) for fact in facts(findings)]), "facts")
    rows = [[field, *values] for field, values in conditions.table(list(findings.conditions.values())).items()]
    yield _table(Grid("", ["", *findings.conditions], rows), "facts")
    for flag in findings.flags:
        yield f"<p>Not compared, {escape(flag.variant)}: {escape('; '.join(flag.problems))}.</p>"
    for note in findings.notes:
        yield f"<p>{escape(note)}</p>"


def throughput_against_latency(findings: Findings) -> str:
    """A line for every variant, through its rates."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in findings.rows:
        score = row.score
        if row.load.kind == "rate" and score.attended.ttft_p95 is not None:
            point = (row.load.value, score.figures.tokens_per_s, score.attended.ttft_p95)
            lines.setdefault(row.variant, []).append(point)
    drawn = [Line(name, [(x, y) for _, x, y in sorted(points)]) for name, points in lines.items()]
    return plot("Throughput against latency", Axis("output tok/s"), Axis("TTFT p95, s", is_log=True), drawn)


def ttft_distribution(play: Play) -> str:
    """Of each class, which part of its calls had a first token after so long."""
    found: dict[str, list[float]] = {}
    for record in play.records:
        if record.ttft_s is not None:
            found.setdefault(record.fairness_class, []).append(record.ttft_s)
    names = sorted(found, key=lambda name: (CLASS_ORDER.index(name) if name in CLASS_ORDER else 9, name))
    lines = [Line(name, _cumulated(found[name]), is_step=True, marks=False) for name in names]
    return plot("TTFT by class, base line", Axis("TTFT, s", is_log=True), Axis("part of the requests"), lines)


def batch_timeline(play: Play) -> str:
    """Who ran and who waited; from the calls themselves where the server does not tell."""
    running = [(r.at, float(r.num_running)) for r in play.readings if r.num_running is not None]
    waiting = [(r.at, float(r.num_waiting)) for r in play.readings if r.num_waiting is not None]
    if not running:
        spans = [(r.sent_at, r.ended_at) for r in play.records]
        lines = [Line("in flight", _live(spans), is_step=True, marks=False)]
    else:
        lines = [
            Line("running", running, is_step=True, marks=False),
            Line("waiting", waiting, is_step=True, marks=False),
        ]
    return plot("The batch, base line", Axis("s"), Axis("requests"), lines)


def _cumulated(values: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(values)
    return [(value, (index + 1) / len(ordered)) for index, value in enumerate(ordered)]


def _live(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    count, points = 0, []
    for at, change in sorted(edge for begin, end in spans for edge in ((begin, 1), (end, -1))):
        count += change
        points.append((at, float(count)))
    return points


def _table(grid: Grid, kind: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in grid.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in grid.rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
