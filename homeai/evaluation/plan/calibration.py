"""What a machine reaches with one model, solved for from few measured steps; and how far that is from others.

Steps of 1 row, of 8 rows and of an 8-token prompt say it all: what reading costs, what multiplying costs, and what the
output matrix costs when several rows go through it. Any other step follows by `work_of`. Not imported by the simulator:
it needs numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import numpy as np

from homeai.errors import ConfigError
from homeai.evaluation.cost_fit import MeasuredStep, least_squares
from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.plan.architecture import Architecture
from homeai.evaluation.plan.roofline import Rates, RooflineCost, work_of

FEW_ROWS: Final = 1
MANY_ROWS: Final = 8
SHORT_PROMPT: Final = 8
SMALLEST: Final = 1e-18  # seconds per byte or FLOP: no rate is endless
MIN_HOST_S: Final = 1e-6
BUS: Final = 5e9  # bytes/s between caches in ordinary memory, where nothing crosses a bus


class Point(msgspec.Struct, frozen=True):
    """Steps of one shape, at their medians. num_context_tokens: summed over the requests. model_s: of step_s."""

    num_prefill_tokens: int
    num_decode_tokens: int
    num_context_tokens: int
    step_s: float
    model_s: float
    num_steps: int = 1

    @property
    def shape(self) -> StepShape:
        cells = self.num_context_tokens
        return StepShape(self.num_prefill_tokens, self.num_decode_tokens, cells, 0, cells)  # a roofline asks no more

    def __str__(self) -> str:
        rows = f"{self.num_decode_tokens} row{'s' if self.num_decode_tokens > 1 else ''}"
        if not self.num_prefill_tokens:
            return rows
        prompt = f"prompt of {self.num_prefill_tokens}"
        return f"{prompt} beside {rows}" if self.num_decode_tokens else prompt


class Check(msgspec.Struct, frozen=True):
    point: Point
    predicted_s: float

    @property
    def error(self) -> float:
        """Signed: predicted over measured, less one."""
        return self.predicted_s / self.point.step_s - 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """`fitted`: what it was solved from. `held_out`: what else was measured, which proves it."""

    model: str
    file: str
    machine: str
    rates: Rates
    fitted: list[Check]
    held_out: list[Check]

    @property
    def error(self) -> float | None:
        """The largest one of points that were held out; None without any."""
        return max((abs(check.error) for check in self.held_out), default=None)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Raises `ConfigError`."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{str(path)!r} does not hold a calibration: {error}") from None


def points_of(steps: Iterable[MeasuredStep]) -> list[Point]:
    """Steps of the same shape as one point. Those with drafts are left out: they draw more than a token per row."""
    groups: dict[tuple[int, int], list[MeasuredStep]] = {}
    for step in steps:
        if not step.num_draft_tokens:
            groups.setdefault((step.num_prefill_tokens, step.num_decode_tokens), []).append(step)
    return [
        Point(
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=num_decode_tokens,
            num_context_tokens=round(median(step.num_context_tokens for step in group)),
            step_s=median(step.step_s for step in group),
            model_s=median(step.forward_s or step.step_s for step in group),
            num_steps=len(group),
        )
        for (num_prefill_tokens, num_decode_tokens), group in sorted(groups.items())
    ]


def calibrate(model: Architecture, points: Sequence[Point], *, file: str, machine: str) -> Calibration:
    """Raises `ConfigError` when the points that it is solved from are not all there."""
    fitted = _chosen(points)
    rates = solve(model, fitted)
    cost = RooflineCost(model, rates, "", machine, 0)
    checks = {point: Check(point, cost.step_s(point.shape)) for point in points}
    return Calibration(
        model=model.name,
        file=file,
        machine=machine,
        rates=rates,
        fitted=[check for point, check in checks.items() if point in fitted],
        held_out=[check for point, check in checks.items() if point not in fitted],
    )


def solve(model: Architecture, points: Sequence[Point]) -> Rates:
    """The rates that come closest to all of the points; with one of each kind they meet them exactly."""
    works = [weights + context for weights, context in (work_of(model, point.shape) for point in points)]
    features = np.array(
        [[w.read_bytes - w.shared_output_bytes, w.shared_output_bytes, w.flops - w.hidden_flops] for w in works]
    )
    read, shared, multiply = least_squares(features, np.array([point.model_s for point in points]))
    decodes = [point for point in points if not point.num_prefill_tokens]
    rows = np.array([[1.0, point.num_decode_tokens] for point in decodes])
    step_s, row_s = least_squares(rows, np.array([max(MIN_HOST_S, point.step_s - point.model_s) for point in decodes]))
    return Rates(
        bandwidth=1 / max(read, SMALLEST),
        output_bandwidth=1 / max(shared, SMALLEST),
        flops=1 / max(multiply, SMALLEST),
        bus=BUS,
        step_s=step_s,
        row_s=row_s,
        overlaps=False,
    )


def _chosen(points: Sequence[Point]) -> list[Point]:
    """1 row, 8 rows, and the shortest prompt alone; where none is short, as in most logs, all of them."""
    prompts = [point for point in points if point.num_prefill_tokens and not point.num_decode_tokens]
    short = [point for point in prompts if point.num_prefill_tokens <= SHORT_PROMPT]
    few, many = (
        [point for point in points if not point.num_prefill_tokens and point.num_decode_tokens == rows]
        for rows in (FEW_ROWS, MANY_ROWS)
    )
    if not (few and many and prompts):
        raise ConfigError(
            f"a calibration needs steps of {FEW_ROWS} row and of {MANY_ROWS} rows, and of a prompt alone; "
            f"measured: {', '.join(map(str, points)) or 'nothing'}"
        )
    return few + many + (short[:1] or prompts)
