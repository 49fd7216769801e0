"""How many tokens to guess behind the decodes of a step."""

from __future__ import annotations

from collections.abc import Sequence

from homeai.backends.llamacpp.drafts import StepCosts
from homeai.backends.torch.live import Work
from homeai.engine.runner import RunnerLimits


class Guesses:
    """Owns what a longer step was seen to cost."""

    def __init__(self, limits: RunnerLimits) -> None:
        self._limits = limits
        self._costs = StepCosts()

    def observe(self, works: Sequence[Work], seconds: float) -> None:
        """A step took so long. Only those count in which every token had logits."""
        num_tokens = sum(work.num_tokens for work in works)
        if num_tokens == sum(work.num_outputs for work in works):
            self._costs.observe(num_tokens, seconds)

    def added(self, works: list[Work]) -> list[Work]:
        """The same with the guesses that are worth computing."""
        if not any(work.chunk.num_drafts for work in works):
            return works
        num_tokens = sum(work.num_tokens for work in works)
        num_rows = sum(work.num_outputs for work in works)
        num_drafts = 0
        guessed: list[Work] = []
        for work in works:
            room = min(self._max_drafts(work), self._limits.max_num_batched_tokens - num_tokens - num_drafts)
            if room > 0:
                drafts = work.live.drafter.propose(room, num_tokens + num_drafts, num_rows, self._costs)
                work = work._replace(drafts=drafts)
                num_drafts += len(drafts)
            guessed.append(work)
        return guessed

    def _max_drafts(self, work: Work) -> int:
        """None behind the request's last token: one is drawn in any case."""
        chunk, live, _ = work
        if not chunk.num_outputs:
            return 0
        num_outputs_left = live.sampler.params.max_tokens - live.num_output_tokens
        return min(chunk.num_drafts, num_outputs_left - 1, self._limits.max_model_len - len(live.tokens) - 1)
