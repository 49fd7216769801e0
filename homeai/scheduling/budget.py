"""How much prefill a step may carry.

Prefill beside running streams makes them wait; Sarathi-Serve (Agrawal et al., OSDI '24) bounds it by a fixed
token budget. Here the bound is time: a step may last as long as the tightest inter-token target among the
streams in it allows, on whatever hardware this is.
"""

from __future__ import annotations

from homeai.scheduling.plan import StepPlan
from homeai.scheduling.step_time import StepTimeModel

HEADROOM = 0.85  # of a target: one step in ten takes a quarter longer than it was thought to


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
