"""The batch's draws: one token per logits row.

Each row goes through the same steps, in llama.cpp's order:

1. mask       end tokens, while the request must go on
2. bias       `logit_bias`
3. penalties
4. draw       greedy, or top-k → top-p → min-p → temperature → inverse CDF in token-id order

A draw depends on the row, the request's parameters and (seed, output index); never on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from homeai.errors import BrokenLogits
from homeai.request import SampledToken, SamplingParams
from homeai.sampling.logprobs import with_logprobs
from homeai.sampling.philox import uniform
from homeai.sampling.row import Logits, Row, TokenIds
from homeai.sampling.state import SamplerState
from homeai.sampling.truncation import survivors, truncates
from homeai.sampling.weights import pick, softmax_weights


class BatchSampler:
    """Stateless but for the vocabulary; a `SamplerState` remembers what each request needs."""

    def __init__(self, vocab_size: int, end_token_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._end_ids = np.array(sorted(end_token_ids), np.intp)

    def sample(
        self, logits: Logits, states: Sequence[SamplerState], output_indices: Sequence[int]
    ) -> list[SampledToken]:
        """`draw` for each row of `logits` [rows, vocabulary]: row i is `states[i]`'s token `output_indices[i]`."""
        assert len(logits) == len(states), f"{len(logits)} rows of logits for {len(states)} requests"
        return [self.draw(logits, i, *pair) for i, pair in enumerate(zip(states, output_indices, strict=True))]

    def draw(self, logits: Logits, row: int, state: SamplerState, output_index: int) -> SampledToken:
        """One row's token, out of `logits` [rows, vocabulary], C-contiguous. Logits and state are as they were after.

        A request may have several rows, each drawn when the token of the one before was observed.
        Raises BrokenLogits for a row that holds NaN or +inf, or nothing but -inf.
        """
        num_rows, vocab_size = logits.shape
        assert vocab_size == self._vocab_size, f"{vocab_size} logits in a row, {self._vocab_size} tokens"
        raw = Row(logits[row])
        if not math.isfinite(raw.peak):
            raise BrokenLogits(row, num_rows, raw.peak)
        return self._sample_row(raw, state, output_index)

    def _sample_row(self, row: Row, state: SamplerState, output_index: int) -> SampledToken:
        originals = self._edit(row, state, output_index)
        token_id = self._draw(row, state.params, output_index)
        for ids, logits in reversed(originals):
            row.logits[ids] = logits
        if state.params.logprobs is None:
            return SampledToken(token_id)
        own = Row(row.logits) if originals else row  # log-probabilities are of the model's own logits
        return with_logprobs(own, token_id, state.params.logprobs)

    def _edit(self, row: Row, state: SamplerState, output_index: int) -> list[tuple[TokenIds, Logits]]:
        """Steps 1 to 3, in place: each touches a few tokens. Returns what to put back, in reverse."""
        originals = []
        if state.params.ignore_eos or output_index < state.params.min_tokens:
            originals.append((self._end_ids, row.replace(self._end_ids, -np.inf)))
        if state.bias_ids.size:
            biased = row.logits[state.bias_ids] + state.bias
            originals.append((state.bias_ids, row.replace(state.bias_ids, biased)))
        if state.window:
            ids, penalized = state.window.penalized(row.logits)
            originals.append((ids, row.replace(ids, penalized)))
        return originals

    def _draw(self, row: Row, params: SamplingParams, output_index: int) -> int:
        """Step 4."""
        if row.peak == -math.inf:
            return self._last_resort()
        if params.temperature <= 0:
            return row.argmax()
        return _draw_at_random(row, params, uniform(params.seed, output_index))

    def _last_resort(self) -> int:
        """The request forbade every token. That must not stop the others: its own text can only end."""
        return int(self._end_ids[0]) if self._end_ids.size else 0


def _draw_at_random(row: Row, params: SamplingParams, u: float) -> int:
    """In token-id order: two nearly equal tokens that change rank do not change what is drawn."""
    if not truncates(params, row.logits.size):
        return pick(softmax_weights(row.logits, params.temperature), u)
    ids, logits = survivors(row, params)
    by_id = ids.argsort()
    return int(ids[by_id[pick(softmax_weights(logits[by_id], params.temperature), u)]])
