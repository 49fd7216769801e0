"""How long a step takes, learned from the steps that ran, and how much prefill one may carry.

Prefill beside running streams makes them wait; Sarathi-Serve (Agrawal et al., OSDI '24) bounds it by a fixed
token budget. Here the bound is time: a step may last as long as the tightest inter-token target among the
streams in it allows, on whatever hardware this is.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from homeai.scheduling.plan import StepPlan

FORGETTING = 0.98  # per step of a kind: about 50 of them are remembered
MAX_VARIANCE = 1e4
DRIFT_RATE = 0.1
CELLS_PER_UNIT = 1e6  # rows · cells, scaled to the size of the other features
HEADROOM = 0.85  # of a target: one step in ten takes a quarter longer than it was thought to
MIN_TOKEN_S = 1e-6  # a million tokens a second: faster than any machine in a home
MIN_STEP_S = 1e-4  # shorter ones do not count for more

# Before the first step: a 270M model on two CPU cores. One step corrects most of it.
PREFILL_PRIOR_S = (0.014, 0.0015, 0.005, 0.010, 0.010)
PREFILL_VARIANCE = (100.0, 0.1, 10.0, 10.0, 1.0)  # of little weight: the machine may be a hundred times as fast
DECODE_PRIOR_S = (0.014, 0.005, 0.010)
DECODE_VARIANCE = (100.0, 10.0, 1.0)


class _Line:
    """Seconds as a sum of features, by recursive least squares.

    A step counts by the root of what it was thought to take, so that long ones do not decide about short ones.
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
        p, spread_of_one = self._variance, max(MIN_STEP_S, fitted, seconds)
        px = [sum(map(mul, row, x)) for row in p]
        gain = [value / (FORGETTING * spread_of_one + sum(map(mul, x, px))) for value in px]
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


class Budget:
    """Prefill tokens of a step.

    ceiling: tokens of a step, whatever the time.
    patience_s: the longest a step may take when no stream in it has a target: who comes next waits for its end.
    min_chunk_tokens: prefill goes on at least so fast, even where the targets cannot be held.
    """

    def __init__(self, ceiling: int, patience_s: float, min_chunk_tokens: int) -> None:
        self.times = StepTimeModel()
        self._ceiling = ceiling
        self._patience_s = patience_s
        self._min_chunk_tokens = min_chunk_tokens

    def prefill_tokens(self, num_decode: int, num_cells: int, itl_target_s: float | None) -> int:
        """How many prefill tokens the step may carry beside its decodes."""
        seconds = self._patience_s if itl_target_s is None else min(self._patience_s, HEADROOM * itl_target_s)
        in_time = self.times.prefill_within(seconds, num_decode, num_cells)
        return min(self._ceiling - num_decode, max(self._min_chunk_tokens, in_time))

    def predict(self, plan: StepPlan, num_cells: int) -> float:
        draws = plan.num_outputs > 0
        return self.times.predict(plan.num_prefill_tokens, plan.num_decode_tokens, num_cells, draws=draws)
