"""Plots as inline SVG, drawn for one page: light and dark by its CSS variables. Pure; no library, no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 50
NUM_COLOURS: Final = 8
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """`is_step`: a value holds until the next one. `marks`: its points are shown."""

    name: str
    points: Sequence[Point]
    is_step: bool = False
    marks: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """`is_log` for values over decades; they must be above 0 then."""

    title: str
    is_log: bool = False


def plot(title: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """A figure with its legend; says so when there is nothing to draw."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return f"<figure><figcaption>{escape(title)}: nothing was measured.</figcaption></figure>"
    across = _scale([px for line in drawn for px, _ in line.points], x.is_log, LEFT, WIDTH - RIGHT)
    up = _scale([py for line in drawn for _, py in line.points], y.is_log, HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x, y, across, up)]
    for index, line in enumerate(drawn):
        parts += _line(line, index % NUM_COLOURS, across, up)
    label = f"{title}: {y.title} against {x.title}"
    legend = "".join(f'<li class="c{i % NUM_COLOURS}">{escape(line.name)}</li>' for i, line in enumerate(drawn))
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
        f'<ul class="legend">{legend}</ul></figure>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    place: Callable[[float], float]
    ticks: list[float]


def _scale(values: Sequence[float], is_log: bool, begin: float, end: float) -> _Scale:
    if is_log:
        low = math.floor(math.log10(max(min(values), 1e-6)))
        high = max(low + 1, math.ceil(math.log10(max(*values, 1e-6))))
        ticks = [10.0**power for power in range(low, high + 1)]
        return _Scale(lambda v: begin + (math.log10(max(v, 1e-6)) - low) / (high - low) * (end - begin), ticks)
    step = _nice(max(max(values), 1e-9) / 5)
    top = step * math.ceil(max(max(values), 1e-9) / step)
    ticks = [step * index for index in range(round(top / step) + 1)]
    return _Scale(lambda v: begin + v / top * (end - begin), ticks)


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _grid(x: Axis, y: Axis, across: _Scale, up: _Scale) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in across.ticks:
        at = across.place(tick)
        yield f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
    for tick in up.ticks:
        at = up.place(tick)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 5:.1f}" text-anchor="end">{tick:g}</text>'
    yield f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.title)}</text>'
    middle = (TOP + bottom) / 2
    yield f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
    yield f"{escape(y.title)}</text>"


def _line(line: Line, colour: int, across: _Scale, up: _Scale) -> Iterator[str]:
    places = [(across.place(px), up.place(py)) for px, py in line.points]
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for px, py in places[1:]:
        path += f"H{px:.1f}V{py:.1f}" if line.is_step else f"L{px:.1f} {py:.1f}"
    yield f'<path class="line c{colour}" d="{path}"/>'
    if line.marks:
        for (px, py), (vx, vy) in zip(places, line.points, strict=True):
            yield f'<circle class="c{colour}" cx="{px:.1f}" cy="{py:.1f}" r="3.5">'
            yield f"<title>{escape(line.name)}: {vx:.3g}, {vy:.3g}</title></circle>"
