"""A plan as a terminal shows it. Figures come from elsewhere; each table says what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from homeai.evaluation.plan.architecture import Architecture
from homeai.evaluation.plan.calibration import Calibration, Check
from homeai.evaluation.plan.capacity import Need, Setting
from homeai.evaluation.plan.compare import Side
from homeai.evaluation.plan.gpus import GPU
from homeai.evaluation.plan.roofline import BANDWIDTH_REACHED, COMPUTE_REACHED, Rates
from homeai.evaluation.plan.session import Here, OnCards
from homeai.evaluation.plan.speed import Speed
from homeai.memory_plan import Need as HostNeed
from homeai.memory_plan import Plan, gib

MAX_FITTED = 6  # of a log's prompts each has its own length
CLASSES = ("voice", "interactive", "coding", "background")


def gpus(cards: Mapping[str, GPU]) -> RenderableType:
    sources = list(dict.fromkeys(gpu.source for gpu in cards.values()))
    table = _table("--gpu", "memory", "bandwidth", "fp16", "fp8", "power", "from")
    for name, gpu in cards.items():
        table.add_row(
            name,
            f"{gpu.memory_bytes / 1e9:.0f} GB",
            f"{gpu.bandwidth / 1e9:,.0f} GB/s",
            _tflops(gpu.fp16),
            _tflops(gpu.fp8),
            f"{gpu.watts:.0f} W",
            f"[{sources.index(gpu.source) + 1}]",
        )
    notes = [f"[{number}] {source}" for number, source in enumerate(sources, 1)]
    return Group(table, _note("FLOP/s of the tensor cores: dense, accumulated in FP32."), *map(_note, notes))


def model(architecture: Architecture) -> RenderableType:
    a = architecture
    parts = [
        f"{a.num_parameters / 1e9:.2f}B parameters, {gib(a.sizes.weights)} of weights",
        f"{a.num_layers} layers",
        f"{a.kv_bytes_per_token / 1024:.0f} KiB of KV per token (f16)",
    ]
    if a.window is not None:
        parts.append(f"{a.window.num_layers} layers look {a.window.num_tokens:,} tokens back")
    if a.experts is not None:
        parts.append(f"{a.experts.num_used} of {a.experts.num_total} experts per token")
    return Group(Text(a.name, style="bold"), Text(", ".join(parts)))


def here(answer: Here) -> RenderableType:
    parts: list[RenderableType] = [planned(answer.file, answer.plan), *map(Text, answer.plan.changes)]
    if answer.calibration is not None:
        wish = answer.wish
        parts += ["", speed({"here": answer.speeds}, wish.context, wish.prompt), calibrated(answer.calibration)]
    return Group(*parts)


def on_cards(answer: OnCards) -> RenderableType:
    wish = answer.wish
    parts: list[RenderableType] = [
        *(model(answer.model), "", memory(answer.needs, answer.setting), ""),
        capacity(answer.fitting, answer.contexts),
    ]
    if answer.speeds:
        parts += ["", speed(answer.speeds, wish.context, wish.prompt)]
    if answer.sides:
        title = f"{wish.trace}, seed {wish.seed}, {wish.scale:g} times as fast, {answer.setting.num_seqs} seats"
        parts += ["", comparison(answer.sides, wish.currency, title)]
    return Group(*parts, basis(answer.calibration))


def planned(name: str, plan: Plan) -> Table:
    """What a load would take now, and of what."""
    memories = [("GPU", plan.needs.device, plan.rooms.device), ("memory", plan.needs.host, plan.rooms.host)]
    there = [(name, need, room) for name, need, room in memories if need is not None and room is not None]
    table = Table(name, *(name for name, _, _ in there), box=None, header_style="dim")
    for part in fields(HostNeed):
        table.add_row(part.name.replace("_", " "), *(gib(getattr(need, part.name)) for _, need, _ in there))
    table.add_row("together", *(gib(need.total) for _, need, _ in there))
    table.add_row("free", *(f"{gib(room.free)} of {gib(room.total)}" for _, _, room in there))
    return table


def memory(needs: Mapping[str, Need], setting: Setting) -> RenderableType:
    title = f"{setting.num_seqs} sequences × {setting.context:,} tokens, KV {setting.kv_type}"
    table = _table(title, *needs)
    for part in fields(Need):
        if part.name != "total_memory":
            table.add_row(part.name, *(gib(getattr(need, part.name)) for need in needs.values()))
    table.add_row("together", *(gib(need.total) for need in needs.values()))
    table.add_row("of", *(gib(need.total_memory) for need in needs.values()))
    table.add_row(
        "", *(f"{gib(need.free)} left" if need.fits else f"{gib(-need.free)} short" for need in needs.values())
    )
    return table


def capacity(fitting: Mapping[str, Mapping[str, Sequence[int]]], contexts: Sequence[int]) -> RenderableType:
    """`fitting`: by KV type and card, for each context length."""
    columns = {f"{card}\n{kv_type}": counts for kv_type, cards in fitting.items() for card, counts in cards.items()}
    table = _table("tokens each", *columns)
    for row, context in enumerate(contexts):
        table.add_row(f"{context:,}", *(f"{counts[row]:,}" if counts[row] else "–" for counts in columns.values()))
    return Group(Text("sequences that fit at once, by KV type", style="bold"), table)


def speed(by_machine: Mapping[str, Sequence[Speed]], context: int, prompt: int) -> RenderableType:
    table = _table("", "streams", "tok/s", "each", "TTFT", "last TTFT")
    for name, speeds in by_machine.items():
        for number, each in enumerate(speeds):
            table.add_row(
                "" if number else name,
                str(each.num_streams),
                _rate(each.total_tok_s),
                _rate(each.stream_tok_s),
                _seconds(each.ttft_s),
                _seconds(each.last_ttft_s),
            )
    title = f"speed at {context:,} tokens of context each, with prompts of {prompt:,}"
    note = "TTFT: asked alone. last TTFT: of so many that ask at once. Nothing is cached."
    return Group(Text(title, style="bold"), table, _note(note))


def basis(calibration: Calibration | None) -> RenderableType:
    """What the speeds of cards rest on, and how far that is from anything measured."""
    text = (
        f"ESTIMATE, no point measured on these cards: data sheet bandwidth × {BANDWIDTH_REACHED}, FP16 tensor FLOP/s × "
        f"{COMPUTE_REACHED}, the slower one counts."
    )
    if calibration is not None and calibration.error is not None:
        text += (
            f" The same arithmetic with rates measured on this machine ({calibration.machine}, {calibration.file}) is "
            f"off by at most {calibration.error:.0%} at {len(calibration.held_out)} points it was not solved from."
        )
    return _note(text)


def calibrated(found: Calibration) -> RenderableType:
    """What the speeds of this machine rest on."""
    error = "nothing else was measured" if found.error is None else f"off by at most {found.error:.0%} at other points"
    return _note(f"speeds: calibrated on {found.machine}, {error}; {rates(found.rates)}")


def calibration(found: Calibration) -> RenderableType:
    table = _table("step", "measured", "predicted", "error", "")
    for check in found.fitted[:MAX_FITTED]:
        table.add_row(*_check(check), "solved from")
    if num_others := len(found.fitted[MAX_FITTED:]):
        table.add_row(f"and {num_others} more", "", "", "", "solved from")
    for check in found.held_out:
        table.add_row(*_check(check), "")
    heading = Text(f"{found.file} on {found.machine}", style="bold")
    worst = "" if found.error is None else f"held out: off by at most {found.error:.0%}"
    return Group(heading, _note(rates(found.rates)), table, _note(worst))


def rates(r: Rates) -> str:
    return (
        f"reads {r.bandwidth / 1e9:.1f} GB/s (the output matrix for several rows {r.output_bandwidth / 1e9:.1f}) "
        f"and multiplies {r.flops / 1e9:,.0f} GFLOP/s, beside {1e3 * r.step_s:.2f} ms a step and "
        f"{1e3 * r.row_s:.2f} a row"
    )


def comparison(sides: Sequence[Side], currency: str, title: str) -> RenderableType:
    table = _table(title, *(side.gpu.name for side in sides))

    def add(name: str, cell: Callable[[Side], str]) -> None:
        table.add_row(name, *map(cell, sides))

    add("KV cells", lambda side: f"{side.num_cells:,}")
    add("tok/s", lambda side: f"{side.summary.tokens_per_s:.1f}")
    add("busy", lambda side: f"{side.summary.busy:.0%}")
    add("done", lambda side: f"{side.summary.overall.num_completed}/{side.summary.overall.num_requests}")
    add("too long", lambda side: f"{side.summary.overall.num_refused}")
    add("client left", lambda side: f"{side.summary.overall.num_cancelled}")
    add("timed out", lambda side: f"{side.summary.overall.num_timed_out}")
    add("parked", lambda side: f"{side.summary.num_preemptions}")
    add("tokens recomputed", lambda side: f"{side.summary.num_recomputed_tokens:,}")
    add("queue p95", lambda side: _seconds(side.summary.overall.queue_p95))
    add("TPOT p50", lambda side: _seconds(side.summary.overall.tpot_p50))
    add("answer p95", lambda side: _seconds(side.summary.overall.e2e_p95))
    names = {name for side in sides for name in side.summary.classes}
    for name in sorted(names, key=lambda name: (CLASSES.index(name) if name in CLASSES else len(CLASSES), name)):
        table.add_row(f"{name} TTFT p50 / p95", *(_ttfts(side, name) for side in sides))
    if any(side.cost is not None for side in sides):
        add(
            f"{currency} per 1,000 accepted answers",
            lambda side: "–" if side.cost is None else f"{1e3 * side.cost:.4f}",
        )
    return table


def _ttfts(side: Side, name: str) -> str:
    each = side.summary.classes.get(name)
    return "–" if each is None else f"{_seconds(each.ttft_p50)} / {_seconds(each.ttft_p95)}"


def _check(check: Check) -> tuple[str, str, str, str]:
    measured, predicted = (f"{1e3 * seconds:.1f} ms" for seconds in (check.point.step_s, check.predicted_s))
    return str(check.point), measured, predicted, f"{check.error:+.0%}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table


def _note(text: str) -> Text:
    return Text(text, style="dim")


def _tflops(flops: float | None) -> str:
    return "–" if flops is None else f"{flops / 1e12:,.0f} TFLOP/s"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
