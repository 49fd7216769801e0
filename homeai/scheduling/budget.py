"""How long a step takes, learned from the steps that ran, and how much prefill one may carry.

Prefill beside running streams makes them wait; Sarathi-Serve (Agrawal et al., OSDI '24) bounds it by a fixed
token budget. Here the bound is time: a step may last as long as the tightest inter-token target among the
streams in it allows, on whatever hardware this is.
"""

from __future__ import annotations

from operator import mul

from homeai.scheduling.plan import StepPlan

Features = tuple[float, float, float, float, float]

FORGETTING = 0.995  # per step: about 200 steps are remembered
MAX_VARIANCE = 1e4
DRIFT_RATE = 0.3
CELLS_PER_UNIT = 1e6  # rows · cells, scaled to the size of the other features
HEADROOM = 0.85  # of a target: one step in ten takes a fifth longer than it was thought to
MIN_TOKEN_S = 1e-6  # a million tokens a second: faster than any machine in a home

# Before the first step: a 270M model on two CPU cores. One step corrects most of it.
PRIOR_S = (0.014, 0.0015, 0.005, 0.010, 0.010)
PRIOR_VARIANCE = (100.0, 0.1, 10.0, 1.0, 10.0)  # of little weight: the machine may be a hundred times as fast
NUM_FEATURES = len(PRIOR_S)


class StepTimeModel:
    """t = a + b · prefill tokens + c · decode rows + d · (all rows · cells in use) + e · (both kinds of row).

    By recursive least squares. The last steps' ratio of real to predicted time multiplies the prediction, so that
    a machine that has become busy is noticed within a few steps; steps with prefill and without keep ratios of
    their own, since there are many more of the latter.
    """

    def __init__(self) -> None:
        self.coefficients = list(PRIOR_S)
        self._variance = [[PRIOR_VARIANCE[i] * (i == j) for j in range(NUM_FEATURES)] for i in range(NUM_FEATURES)]
        self._drift = {True: 1.0, False: 1.0}  # with prefill, without

    def predict(self, num_prefill: int, num_decode: int, num_cells: int) -> float:
        """Seconds."""
        fitted = self._fitted(_features(num_prefill, num_decode, num_cells))
        return max(0.0, self._drift[num_prefill > 0] * fitted)

    def prefill_within(self, seconds: float, num_decode: int, num_cells: int) -> int:
        """How many prefill tokens a step beside `num_decode` decodes can carry in that time; may be negative."""
        count = self._prefill_within(seconds, num_decode, num_cells)
        return min(count, self._prefill_within(seconds, num_decode, num_cells + max(0, min(count, num_cells))))

    def _prefill_within(self, seconds: float, num_decode: int, num_cells: int) -> int:
        """The straight line solved for the tokens: what it says of none may be below zero."""
        a, b, c, d, e = self.coefficients
        per_row = d * num_cells / CELLS_PER_UNIT
        without = a + (c + per_row) * num_decode + e * (num_decode > 0)
        return int((seconds / self._drift[True] - without) / max(b + per_row, MIN_TOKEN_S))

    def observe(self, num_prefill: int, num_decode: int, num_cells: int, seconds: float) -> None:
        """A step of this make-up took so long."""
        x = _features(num_prefill, num_decode, num_cells)
        fitted = self._fitted(x)
        if fitted > 0:
            ratio = min(4.0, max(0.25, seconds / fitted))
            self._drift[num_prefill > 0] += DRIFT_RATE * (ratio - self._drift[num_prefill > 0])
        p = self._variance
        px = [sum(map(mul, row, x)) for row in p]
        spread = sum(map(mul, x, px))
        gain = [value / (FORGETTING + spread) for value in px]
        error = seconds - fitted
        self.coefficients = [c + g * error for c, g in zip(self.coefficients, gain, strict=True)]
        # what was not seen for long must not come to count for nothing, nor a single step for everything
        grow = 1 / FORGETTING if sum(p[i][i] for i in range(NUM_FEATURES)) < MAX_VARIANCE else 1.0
        self._variance = [
            [(value - g * v) * grow for value, v in zip(row, px, strict=True)] for row, g in zip(p, gain, strict=True)
        ]

    def _fitted(self, x: Features) -> float:
        return float(sum(map(mul, self.coefficients, x)))


def _features(num_prefill: int, num_decode: int, num_cells: int) -> Features:
    has_both = float(num_prefill > 0 and num_decode > 0)
    return 1.0, float(num_prefill), float(num_decode), (num_prefill + num_decode) * num_cells / CELLS_PER_UNIT, has_both


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
        return self.times.predict(plan.num_prefill_tokens, plan.num_decode_tokens, num_cells)
