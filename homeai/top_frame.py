"""One frame of `homeai top`: what the status page shows, in as many lines as the terminal has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from homeai.console import GIB, STATE_STYLES
from homeai.status import EventStatus, RecentRequest, RequestProgress, Status

LEVELS: Final = "▁▂▃▄▅▆▇█"
TONES: Final = ("dark_orange", "dodger_blue1", "green3", "grey62", "orchid")  # classes, as they are listed
PHASES: Final = (
    ("queued_s", "░", "waited"),
    ("prefill_s", "▒", "read"),
    ("parked_s", "╳", "aside"),
    ("decode_s", "█", "wrote"),
)
ORDER: Final = {"running": 0, "preempted": 1, "waiting": 2}
PHASES_WIDTH: Final = 24
SPARK_WIDTH: Final = 12
LONGEST_S: Final = 86_400.0
NUM_EVENTS: Final = 5
ENOUGH_FOR_EVENTS: Final = 20  # lines
ALL: Final = 10_000


class Room(NamedTuple):
    """How many lines each list gets."""

    requests: int
    recent: int
    events: int


def frame(status: Status, width: int, height: int | None, problem: str | None = None) -> RenderableType:
    """`height` None: as many lines as it takes. `problem`: why this is not how it is now."""
    room = Room(ALL, ALL, NUM_EVENTS) if height is None else room_for(status, height)
    parts: list[RenderableType] = [
        _head(status, problem),
        _timeline(status, width),
        _gauges(status),
        *(Text(f"! {note}", style="yellow", no_wrap=True, overflow="ellipsis") for note in status.notes),
        _title("requests", f"{status.batch.num_running} running, {status.batch.num_waiting} waiting"),
        _requests(status, room.requests),
        _title("recently", " ".join(f"{sign} {name}" for _, sign, name in PHASES)),
        _recent(status, room.recent),
        _title("classes", "p95 of the last 10 minutes; served lately, and due when all ask"),
        _classes(status),
    ]
    if room.events:
        parts += [_title("events", ""), *(_event(event) for event in status.events[: room.events])]
    return Group(*parts) if height is None else Group(*parts, Text("q quits", style="dim"))


def room_for(status: Status, height: int) -> Room:
    """State, gauges and classes have their lines; what is left is for the lists."""
    left = height - 6 - len(status.notes) - (3 + len(status.classes)) - 7  # with the lists' own headings
    num_events = min(NUM_EVENTS, len(status.events)) if left >= ENOUGH_FOR_EVENTS else 0
    left -= num_events + 2 if num_events else 0
    num_requests = min(len(status.requests), max(1, left // 2))
    return Room(num_requests, max(1, left - max(1, num_requests)), num_events)


def _head(status: Status, problem: str | None) -> Text:
    model = status.model
    text = Text(f"homeai {status.version}  ", no_wrap=True, overflow="ellipsis")
    text.append(f"● {status.state}", style=f"bold {STATE_STYLES.get(status.state, 'cyan')}")
    if status.load is not None:
        text.append(f"  {status.load.stage} {status.load.fraction:.0%}")
    text.append(f"  {model.name or model.file} on {model.device or '–'}")
    text.append(f"  up {seconds(status.uptime_s)}", style="dim")
    said = problem or status.failure or ("" if status.state == "resident" else status.residency.reason)
    if said:
        text.append(f"  {said}", style="red" if problem or status.failure else "dim")
    return text


def _timeline(status: Status, width: int) -> Text:
    """A cell for each equal part of the time since the start, at most a day."""
    if not status.history or status.now <= status.history[0].began_at:
        return Text()
    begin = max(status.now - LONGEST_S, status.history[0].began_at)
    num_cells = max(10, width - 16)
    text, spans, span = Text(f"{_clock(begin)} "), status.history, 0
    for cell in range(num_cells):
        at = begin + (cell + 1) / num_cells * (status.now - begin)
        while span + 1 < len(spans) and spans[span + 1].began_at <= at:
            span += 1
        text.append("▀", style=STATE_STYLES.get(spans[span].state, "cyan"))
    return text.append(" now", style="dim")


def _gauges(status: Status) -> Table:
    batch, kv = status.batch, status.kv
    table = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, None, None, 1):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
    used = kv.used - kv.kept
    speed = Text()
    if status.pace is not None:
        window_s = status.pace.interval_s + status.pace.last_s
        written, read = (sum(counts[-2:]) / window_s for counts in (status.pace.written, status.pace.read))
        speed = Text(f"{written:,.0f} tok/s written, {read:,.0f} read  ", no_wrap=True)
        speed.append(spark(status.pace.written[-SPARK_WIDTH:]), "green")
    table.add_row(
        "seats", bar(batch.num_running, batch.max_num_seqs), f"{batch.num_running} of {batch.max_num_seqs}", speed
    )
    tokens = f"{batch.num_decode_tokens} written + {batch.num_prefill_tokens} read"
    step = f"{batch.mode}, step: {tokens} in {seconds(batch.step_s)}"
    table.add_row("KV", bar(used, kv.total), f"{used:,} of {kv.total:,}, {kv.kept:,} kept", step)
    memory = status.memory_map
    if memory is not None:
        free = sum(part.num_bytes for part in memory.parts if part.kind == "free")
        biggest = sorted((p for p in memory.parts if p.kind not in ("free", "spare")), key=lambda p: -p.num_bytes)[:4]
        words = ", ".join(f"{part.source or part.kind} {part.num_bytes / GIB:.1f}" for part in biggest)
        gauge = bar(memory.total_bytes - free, memory.total_bytes)
        table.add_row(memory.where, gauge, f"{free / GIB:.1f} of {memory.total_bytes / GIB:.1f} GiB free", words)
    return table


def _requests(status: Status, count: int) -> RenderableType:
    if not status.requests:
        return Text("nobody is asking right now", style="dim")
    table = _table("source", "class", "age", "read", "written", "")
    for request in sorted(status.requests, key=lambda r: (ORDER.get(r.status, 3), -r.age_s))[:count]:
        table.add_row(
            Text(request.source, tone(status, request.fairness_class)),
            request.fairness_class,
            seconds(request.age_s),
            f"{min(request.num_computed_tokens, request.num_prompt_tokens):,}/{request.num_prompt_tokens:,}",
            f"{request.num_output_tokens:,}/{request.max_tokens:,}",
            _doing(request),
        )
    num_more = len(status.requests) - count
    return Group(table, Text(f"and {num_more} more", "dim")) if num_more > 0 else table


def _doing(request: RequestProgress) -> Text:
    if request.status == "running":
        return Text("writes" if request.num_output_tokens else f"reads {request.num_step_tokens:,} a step")
    why = request.wait_reason.replace("_", " ") if request.wait_reason else "its turn"
    wait = "" if request.expected_wait_s is None else f", about {seconds(max(1.0, request.expected_wait_s))}"
    return Text(f"{'set aside' if request.status == 'preempted' else 'waits'}: {why}{wait}", style="yellow")


def _recent(status: Status, count: int) -> RenderableType:
    if not status.recent:
        return Text("no request has ended since the start", style="dim")
    shown = status.recent[:count]
    longest = max(map(lasted_s, shown)) or 1.0
    table = _table("at", "source", "took", "", "why")
    for request in shown:
        cells = Text(phases(request, longest), tone(status, request.fairness_class))
        table.add_row(_clock(request.ended_at), request.source, seconds(lasted_s(request)), cells, why(request))
    return table


def why(request: RecentRequest) -> str:
    """The longest part of its life, and who was in the way."""
    if request.problem is not None:
        return request.problem.replace("_", " ")
    longest, name = max((getattr(request, field), name) for field, _, name in PHASES)
    if lasted_s(request) < 0.05:
        return ""
    words = f"{name} {seconds(longest)}"
    if name == "waited" and request.wait_reason:
        words += f" ({request.wait_reason.replace('_', ' ')})"
    is_behind = name in ("waited", "aside")
    others = [o.source for o in request.in_the_way if (o.ahead_s if is_behind else o.beside_s) >= 0.05]
    return f"{words}, {'behind' if is_behind else 'beside'} {', '.join(others)}" if others else words


def lasted_s(request: RecentRequest) -> float:
    return request.queued_s + request.prefill_s + request.parked_s + request.decode_s


def phases(request: RecentRequest, longest_s: float) -> str:
    """A cell for each equal part of the longest one's life; what is there has at least one."""
    parts = ((getattr(request, field), sign) for field, sign, _ in PHASES)
    return "".join(sign * max(1, round(PHASES_WIDTH * s / longest_s)) for s, sign in parts if s > 0.001)[
        : PHASES_WIDTH + 3
    ]


def _classes(status: Status) -> Table:
    table = _table("class", "runs", "waits", "first token", "", "next token", "", "served")
    paces = status.pace.classes if status.pace else {}
    for entry in status.classes:
        pace = paces.get(entry.name)
        shares = [f"{s.source} {s.served:.0%}/{s.due:.0%}" for s in status.shares if s.fairness_class == entry.name]
        name = Text(entry.name, tone(status, entry.name))
        table.add_row(
            name.append(" paused", "yellow") if entry.name in status.residency.paused else name,
            str(entry.running),
            str(entry.waiting),
            seconds(pace.ttft_p95_s) if pace else "–",
            spark(pace.ttft_s[-SPARK_WIDTH:]) if pace else "",
            seconds(pace.itl_p95_s) if pace else "–",
            spark(pace.itl_s[-SPARK_WIDTH:]) if pace else "",
            ", ".join(shares[:3]),
        )
    return table


def _event(event: EventStatus) -> Text:
    times = f" ({event.count} changes)" if event.count > 1 else ""
    style = STATE_STYLES.get(event.kind, "red" if event.kind == "crash" else "")
    text = Text(f"{_clock(event.at)} ", style="dim", no_wrap=True, overflow="ellipsis")
    return text.append(event.kind, style=style).append(f" {event.detail}{times}", style="default")


# ---- small parts ---------------------------------------------------------------------------------------


def spark(values: Sequence[float | None]) -> str:
    """A bar for each; a gap where nothing was."""
    highest = max((value for value in values if value), default=0.0)
    return "".join(LEVELS[min(7, int(8 * value / highest))] if value else " " for value in values)


def bar(part: float, whole: float, width: int = 16) -> Text:
    num_full = round(width * min(1.0, part / whole)) if whole > 0 else 0
    return Text("━" * num_full, style="green").append("━" * (width - num_full), style="grey30")


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1e3:.0f} ms"
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 3600 else f"{value / 3600:.1f} h"


def tone(status: Status, fairness_class: str) -> str:
    names = [entry.name for entry in status.classes]
    return TONES[names.index(fairness_class) % len(TONES)] if fairness_class in names else TONES[0]


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _title(name: str, words: str) -> Text:
    return Text(f"\n{name.upper()}", style="bold", no_wrap=True, overflow="ellipsis").append(
        f"  {words}", style="not bold dim"
    )


def _table(*columns: str) -> Table:
    """Columns take what they need, and the last one what is left."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for name in columns[:-1]:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_column(columns[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    return table
