"""How long a step takes on this machine, learned from the steps that ran."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

FORGETTING = 0.98  # per step of a kind: about 50 of them are remembered
MAX_VARIANCE = 1e4
DRIFT_RATE = 0.1
CELLS_PER_UNIT = 1e6  # rows · cells, scaled to the size of the other features
MIN_TOKEN_S = 1e-6  # a million tokens a second: faster than any machine in a home
MIN_STEP_S = 1e-4  # shorter ones do not count for more

# Before the first step: a 270M model on two CPU cores. One step corrects most of it.
PREFILL_PRIOR_S = (0.014, 0.0015, 0.005, 0.010, 0.010)
PREFILL_VARIANCE = (100.0, 0.1, 10.0, 10.0, 1.0)  # of little weight: the machine may be a hundred times as fast
DECODE_PRIOR_S = (0.014, 0.005, 0.010)
DECODE_VARIANCE = (100.0, 10.0, 1.0)


class _Line:
    """Seconds as a sum of features, by recursive least squares.

    The longer a step, the more its time varies: long ones do not decide about short ones.
    The last steps' ratio of real to predicted time multiplies the prediction: a machine that has become busy is
    noticed within a few steps.
    """

    def __init__(self, prior: Sequence[float], variance: Sequence[float]) -> None:
        self.coefficients = list(prior)
        self.drift = 1.0
        self._variance = [[value * (i == j) for j in range(len(prior))] for i, value in enumerate(variance)]

    def predict(self, x: Sequence[float]) -> float:
        return max(0.0, self.drift * self._fitted(x))

    def observe(self, x: Sequence[float], seconds: float) -> None:
        fitted = self._fitted(x)
        if fitted > 0:
            self.drift += DRIFT_RATE * (min(4.0, max(0.25, seconds / fitted)) - self.drift)
        p, noise = self._variance, max(MIN_STEP_S, fitted, seconds)
        px = [sum(map(mul, row, x)) for row in p]
        gain = [value / (FORGETTING * noise + sum(map(mul, x, px))) for value in px]
        self.coefficients = [c + g * (seconds - fitted) for c, g in zip(self.coefficients, gain, strict=True)]
        # what was not seen for long must not come to count for nothing, nor a single step for everything
        grow = 1 / FORGETTING if sum(row[i] for i, row in enumerate(p)) < MAX_VARIANCE else 1.0
        self._variance = [
            [(value - g * v) * grow for value, v in zip(row, px, strict=True)] for row, g in zip(p, gain, strict=True)
        ]

    def _fitted(self, x: Sequence[float]) -> float:
        return float(sum(map(mul, self.coefficients, x)))


class StepTimeModel:
    """t = a + b · prefill tokens + c · decode rows + d · (whether it draws) + e · (all rows · cells in use).

    A step that draws any token goes through the output matrix, most of a small model's weights; the middle of a prompt
    does not. Steps with prefill and without have coefficients of their own: there are many more of the latter.
    """

    def __init__(self) -> None:
        self._mixed = _Line(PREFILL_PRIOR_S, PREFILL_VARIANCE)
        self._decode = _Line(DECODE_PRIOR_S, DECODE_VARIANCE)

    def predict(self, num_prefill: int, num_decode: int, num_cells: int, *, draws: bool = True) -> float:
        """Seconds. `draws`: a token, at the end of a prompt or beside it."""
        return self._line(num_prefill).predict(_features(num_prefill, num_decode, num_cells, draws))

    def prefill_within(self, seconds: float, num_decode: int, num_cells: int) -> int:
        """How many prefill tokens a step beside `num_decode` decodes can carry in that time; may be negative."""
        count = self._prefill_within(seconds, num_decode, num_cells)
        return min(count, self._prefill_within(seconds, num_decode, num_cells + max(0, min(count, num_cells))))

    def observe(self, num_prefill: int, num_decode: int, num_cells: int, seconds: float, *, draws: bool = True) -> None:
        """A step of this make-up took so long."""
        self._line(num_prefill).observe(_features(num_prefill, num_decode, num_cells, draws), seconds)

    def _line(self, num_prefill: int) -> _Line:
        return self._mixed if num_prefill else self._decode

    def _prefill_within(self, seconds: float, num_decode: int, num_cells: int) -> int:
        """The straight line solved for the tokens: what it says of none may be below zero."""
        a, b, c, d, e = self._mixed.coefficients
        per_row = e * num_cells / CELLS_PER_UNIT
        without = a + (c + per_row) * num_decode + d * (num_decode > 0)
        return int((seconds / self._mixed.drift - without) / max(b + per_row, MIN_TOKEN_S))


def _features(num_prefill: int, num_decode: int, num_cells: int, draws: bool) -> tuple[float, ...]:
    row_cells = (num_prefill + num_decode) * num_cells / CELLS_PER_UNIT
    if not num_prefill:
        return 1.0, num_decode, row_cells
    return 1.0, num_prefill, num_decode, float(draws), row_cells
