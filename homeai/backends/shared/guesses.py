"""How many tokens to guess behind the decodes of a step."""

from __future__ import annotations

from homeai.backends.shared.drafts import StepCosts, shared_out
from homeai.backends.shared.work import Work


class Guesses:
    """Owns what a longer step was seen to cost, in `costs`.

    max_tokens, max_outputs: of a step, and rows of logits in it. max_model_len: tokens of a request.
    """

    def __init__(self, *, max_tokens: int, max_outputs: int, max_model_len: int) -> None:
        self.costs = StepCosts()
        self._max_tokens = max_tokens
        self._max_outputs = max_outputs
        self._max_model_len = max_model_len

    def observe(self, works: list[Work], seconds: float) -> None:
        """A step took so long. Only those count in which every token had logits."""
        num_tokens = sum(work.num_tokens for work in works)
        if num_tokens == sum(work.num_outputs for work in works):
            self.costs.observe(num_tokens, seconds)

    def added(self, works: list[Work]) -> list[Work]:
        """The same with the guesses that are worth computing."""
        if not any(work.chunk.num_drafts for work in works):
            return works
        num_tokens = sum(work.num_tokens for work in works)
        num_rows = sum(work.num_outputs for work in works)
        room = min(self._max_outputs - num_rows, self._max_tokens - num_tokens)
        chances = [work.live.drafter.chances(self._max_drafts(work)) for work in works]
        counts = shared_out(chances, num_tokens, num_rows, room, self.costs)
        return [
            work._replace(drafts=work.live.drafter.propose(count)) if count else work
            for work, count in zip(works, counts, strict=True)
        ]

    def _max_drafts(self, work: Work) -> int:
        """None behind the request's last token: one is drawn in any case."""
        chunk, live, _ = work
        if not chunk.num_outputs:
            return 0
        num_outputs_left = live.sampler.params.max_tokens - live.num_output_tokens
        return min(chunk.num_drafts, num_outputs_left - 1, self._max_model_len - len(live.tokens) - 1)
