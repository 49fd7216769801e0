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

COEFFICIENTS: Final = (
    *("decode_cell_s", "decode_attended_s"),
    *("mixed_step_s", "mixed_output_s", "mixed_prefill_s", "mixed_decode_s"),
    *("mixed_cell_s", "mixed_attended_s", "mixed_near_s", "mixed_pair_s"),
    "arrival_s",
)

Vector = NDArray[np.float64]


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """`num_decode_tokens` without drafts. `kv_used` after the step; `forward_s` of `step_s` was the model's.

    num_arrived: requests that came while it ran. Other fields as in `StepShape`.
    """

    num_prefill_tokens: int
    num_decode_tokens: int
    num_context_tokens: int
    num_attended_tokens: int
    kv_used: int
    step_s: float
    forward_s: float = 0.0
    num_draft_tokens: int = 0
    num_outputs: int = 1
    num_near_tokens: int = 0
    num_arrived: int = 0

    @property
    def shape(self) -> StepShape:
        rows = self.num_decode_tokens + self.num_draft_tokens
        return StepShape(
            self.num_prefill_tokens,
            rows,
            self.num_context_tokens,
            self.num_attended_tokens,
            self.kv_used,
            self.num_outputs,
            self.num_near_tokens,
        )


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
    counts = _frequent_counts(decodes)
    known = [step for step in decodes if step.shape.num_decode_tokens in counts] + mixed
    features = np.array([_features(step, counts) for step in known], dtype=float)
    coefficients = least_squares(features, np.array([step.step_s for step in known]))
    times, rest = coefficients[: len(counts)], coefficients[len(counts) :]
    cost = msgspec.structs.replace(
        SMALL_CPU,  # whose copies to and from the host are taken over
        source=source,
        decode_s=list(zip(counts, times, strict=True)),
        **dict(zip(COEFFICIENTS, rest, strict=True)),
    )
    return msgspec.structs.replace(cost, error=error_of(cost, steps))


def error_of(cost: MeasuredCost, steps: Sequence[MeasuredStep]) -> FitError:
    """How far `cost` is from `steps`, which need not be those it was fitted on."""
    measured = np.array([step.step_s for step in steps])
    arrivals_s = [cost.arrival_s * step.num_arrived if step.num_prefill_tokens else 0.0 for step in steps]
    predicted = np.array([cost.step_s(step.shape) for step in steps]) + arrivals_s
    relative = np.abs(predicted - measured) / measured
    return FitError(
        num_steps=len(steps),
        total=float(predicted.sum() / measured.sum() - 1),
        median=float(np.median(relative)),
        p95=float(np.quantile(relative, 0.95)),
    )


def _frequent_counts(decodes: Sequence[MeasuredStep]) -> list[int]:
    """Numbers of rows that were seen often enough to have a time of their own."""
    counts, num_samples = np.unique([step.shape.num_decode_tokens for step in decodes], return_counts=True)
    return [int(count) for count in counts[num_samples >= min(MIN_SAMPLES, num_samples.max())]]


def _features(step: MeasuredStep, counts: Sequence[int]) -> list[float]:
    """What the times of decodes by `counts` and then COEFFICIENTS are multiplied with.

    A step without prefill is over before the front end has read who came meanwhile: it tells nothing of that.
    """
    shape = step.shape
    prefill, rows, row_cells = shape.num_prefill_tokens, shape.num_decode_tokens, shape.num_tokens * shape.kv_used
    attended, near, draws = shape.num_attended_tokens, shape.num_near_tokens, shape.num_outputs > 0
    of_decode = [*(rows == count for count in counts), row_cells, attended]
    of_mixed = [1.0, draws, prefill, rows, row_cells, attended, near, prefill * rows, step.num_arrived]
    return [*[0.0] * len(of_decode), *of_mixed] if prefill else [*of_decode, *[0.0] * len(of_mixed)]


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
