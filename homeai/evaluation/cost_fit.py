"""Least squares over measured steps → a `MeasuredCost`, with its error. Not imported by the simulator: it needs numpy.

A log of steps is JSON lines as the engine writes them when HOMEAI_STEP_LOG names a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from homeai.errors import ConfigError
from homeai.evaluation.cost_model import SMALL_CPU, FitError, MeasuredCost, StepShape

MIN_STEPS: Final = 20  # of each kind
MIN_SAMPLES: Final = 5  # of a number of rows, to be a point of its own

Vector = NDArray[np.float64]


class MeasuredStep(msgspec.Struct, frozen=True):
    """`num_decode_tokens` without drafts. `kv_used` after the step; `forward_s` of `step_s` was the model's."""

    num_prefill_tokens: int
    num_decode_tokens: int
    kv_used: int
    step_s: float
    forward_s: float = 0.0
    num_draft_tokens: int = 0

    @property
    def shape(self) -> StepShape:
        rows = self.num_decode_tokens + self.num_draft_tokens
        return StepShape(self.num_prefill_tokens, rows, self.kv_used, self.kv_used)


def load_steps(path: Path) -> list[MeasuredStep]:
    """Steps that computed something. Raises `ConfigError` with the line."""
    decoder = msgspec.json.Decoder(MeasuredStep)
    steps = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"step log {str(path)!r} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            steps.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}, line {number}: not a step: {error}") from None
    return [step for step in steps if step.num_prefill_tokens + step.num_decode_tokens and step.step_s > 0]


def fit(steps: Sequence[MeasuredStep], source: str) -> MeasuredCost:
    """Raises `ConfigError` when there are too few steps with, or without, prefill."""
    decodes = [step for step in steps if not step.num_prefill_tokens]
    mixed = [step for step in steps if step.num_prefill_tokens]
    if min(len(decodes), len(mixed)) < MIN_STEPS:
        raise ConfigError(
            f"{len(mixed)} steps with prefill and {len(decodes)} without it: a fit needs {MIN_STEPS} of each"
        )
    points, decode_cell_s = _fit_decodes(decodes)
    step_s, prefill_s, decode_s, cell_s, pair_s = _fit_mixed(mixed)
    cost = MeasuredCost(
        source=source,
        decode_s=points,
        decode_cell_s=decode_cell_s,
        mixed_step_s=step_s,
        mixed_prefill_s=prefill_s,
        mixed_decode_s=decode_s,
        mixed_cell_s=cell_s,
        mixed_pair_s=pair_s,
        save_token_s=SMALL_CPU.save_token_s,
        restore_token_s=SMALL_CPU.restore_token_s,
    )
    return msgspec.structs.replace(cost, error=error_of(cost, steps))


def error_of(cost: MeasuredCost, steps: Sequence[MeasuredStep]) -> FitError:
    """How far `cost` is from `steps`, which need not be those it was fitted on."""
    measured = np.array([step.step_s for step in steps])
    predicted = np.array([cost.step_s(step.shape) for step in steps])
    relative = np.abs(predicted - measured) / measured
    return FitError(
        num_steps=len(steps),
        total=float(predicted.sum() / measured.sum() - 1),
        median=float(np.median(relative)),
        p95=float(np.quantile(relative, 0.95)),
    )


def _fit_decodes(steps: Sequence[MeasuredStep]) -> tuple[list[tuple[int, float]], float]:
    """A time for each number of rows that was seen often, and one slope over rows × cells for all of them."""
    rows = np.array([step.shape.num_decode_tokens for step in steps])
    counts, num_samples = np.unique(rows, return_counts=True)
    often = counts[num_samples >= min(MIN_SAMPLES, num_samples.max())]
    kept = np.isin(rows, often)
    cells = np.array([step.kv_used for step in steps], dtype=float)
    features = np.column_stack([*(rows == count for count in often), rows * cells])[kept]
    *times, cell_s = least_squares(features, np.array([step.step_s for step in steps])[kept])
    return [(int(count), time) for count, time in zip(often, times, strict=True)], cell_s


def _fit_mixed(steps: Sequence[MeasuredStep]) -> list[float]:
    shapes = [step.shape for step in steps]
    features = np.array(
        [
            [1.0, n, rows, shape.num_tokens * shape.kv_used, n * rows]
            for shape in shapes
            for n, rows in [(shape.num_prefill_tokens, shape.num_decode_tokens)]
        ]
    )
    return least_squares(features, np.array([step.step_s for step in steps]))


def least_squares(features: Vector, seconds: Vector) -> list[float]:
    """Coefficients, none below zero: one that would be is left out and the others fitted again.

    Rows are divided by √seconds, so that the many short steps count beside the few long ones.
    """
    weight = 1 / np.sqrt(seconds)
    columns = list(range(features.shape[1]))
    while True:
        scale = np.maximum(np.abs(features[:, columns]).max(axis=0), 1e-12)
        scaled = features[:, columns] / scale * weight[:, None]
        solution = np.linalg.lstsq(scaled, seconds * weight, rcond=None)[0] / scale
        if (solution >= 0).all():
            break
        del columns[int(np.argmin(solution * scale))]
    coefficients = np.zeros(features.shape[1])
    coefficients[columns] = solution
    return [float(c) for c in coefficients]
