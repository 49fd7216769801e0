"""How long a step takes, learned from the steps that ran, and how much prefill one may carry.

Prefill beside running streams makes them wait; Sarathi-Serve (Agrawal et al., OSDI '24) bounds it by a fixed
token budget. Here the bound is time: a step may last as long as the tightest inter-token target among the
streams in it allows, on whatever hardware this is.
"""

from __future__ import annotations

from homeai.scheduling.plan import StepPlan

FORGETTING = 0.995  # per step: about 200 steps are remembered
MAX_VARIANCE = 1e4
DRIFT_RATE = 0.2
CELLS_PER_UNIT = 1e6  # rows · cells, scaled to the size of the other features

SOME_TOKENS = 64
MIN_TOKEN_S = 1e-6  # a million tokens a second: faster than any machine in a home

# Before the first step: a 270M model on two CPU cores. One step corrects most of it.
PRIOR_S = (0.014, 0.0019, 0.005, 0.010)
PRIOR_VARIANCE = (100.0, 0.1, 10.0, 1.0)  # of little weight: the machine may be a hundred times as fast


class StepTimeModel:
    """t = a + b · prefill tokens + c · decode rows + d · (all rows · cells in use), by recursive least squares.

    The last steps' ratio of real to predicted time multiplies the prediction, so that a machine that has become
    busy is noticed within a few steps.
    """

    def __init__(self) -> None:
        self.coefficients = list(PRIOR_S)
        self._variance = [[PRIOR_VARIANCE[i] * (i == j) for j in range(4)] for i in range(4)]
        self.drift = 1.0

    def predict(self, num_prefill: int, num_decode: int, num_cells: int) -> float:
        """Seconds."""
        return max(0.0, self.drift * self._fitted(_features(num_prefill, num_decode, num_cells)))

    def prefill_within(self, seconds: float, num_decode: int, num_cells: int) -> int:
        """How many prefill tokens a step beside `num_decode` decodes can carry in that time; may be negative."""
        count = self._prefill_within(seconds, num_decode, num_cells)
        return min(count, self._prefill_within(seconds, num_decode, num_cells + max(0, min(count, num_cells))))

    def _prefill_within(self, seconds: float, num_decode: int, num_cells: int) -> int:
        without = self.predict(0, num_decode, num_cells)
        per_token = (self.predict(SOME_TOKENS, num_decode, num_cells) - without) / SOME_TOKENS
        return int((seconds - without) / max(per_token, MIN_TOKEN_S))

    def observe(self, num_prefill: int, num_decode: int, num_cells: int, seconds: float) -> None:
        """A step of this make-up took so long."""
        x = _features(num_prefill, num_decode, num_cells)
        fitted = self._fitted(x)
        if fitted > 0:
            ratio = min(4.0, max(0.25, seconds / fitted))
            self.drift += DRIFT_RATE * (ratio - self.drift)
        p = self._variance
        px = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] + row[3] * x[3] for row in p]
        spread = x[0] * px[0] + x[1] * px[1] + x[2] * px[2] + x[3] * px[3]
        gain = [value / (FORGETTING + spread) for value in px]
        error = seconds - fitted
        self.coefficients = [c + g * error for c, g in zip(self.coefficients, gain, strict=True)]
        # what was not seen for long must not come to count for nothing, nor a single step for everything
        grow = 1 / FORGETTING if p[0][0] + p[1][1] + p[2][2] + p[3][3] < MAX_VARIANCE else 1.0
        self._variance = [[(p[i][j] - gain[i] * px[j]) * grow for j in range(4)] for i in range(4)]

    def _fitted(self, x: tuple[float, float, float, float]) -> float:
        a, b, c, d = self.coefficients
        return a * x[0] + b * x[1] + c * x[2] + d * x[3]


def _features(num_prefill: int, num_decode: int, num_cells: int) -> tuple[float, float, float, float]:
    return 1.0, float(num_prefill), float(num_decode), (num_prefill + num_decode) * num_cells / CELLS_PER_UNIT


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
        seconds = min(self._patience_s, itl_target_s if itl_target_s is not None else self._patience_s)
        in_time = self.times.prefill_within(seconds, num_decode, num_cells)
        return min(self._ceiling - num_decode, max(self._min_chunk_tokens, in_time))

    def predict(self, plan: StepPlan, num_cells: int) -> float:
        return self.times.predict(plan.num_prefill_tokens, plan.num_decode_tokens, num_cells)
