"""Repetition, presence and frequency penalties over a window of the last tokens, prompt included.

Source: llama-sampler.cpp (`llama_sampler_penalties_apply`). What the window holds is counted as tokens
arrive, so a draw costs the distinct tokens in it, not its length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from homeai.request import SamplingParams
from homeai.sampling.row import Logits, TokenIds


def penalizes(params: SamplingParams) -> bool:
    is_neutral = params.repeat_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0
    return params.repeat_last_n != 0 and not is_neutral


class PenaltyWindow:
    """Counts of the last `repeat_last_n` tokens (-1: of all)."""

    def __init__(self, params: SamplingParams, token_ids: Sequence[int]) -> None:
        self._params = params
        self._tokens: deque[int] = deque()
        self._counts: dict[int, int] = {}
        for token_id in token_ids[-params.repeat_last_n :] if params.repeat_last_n > 0 else token_ids:
            self.observe(token_id)

    @property
    def counts(self) -> Mapping[int, int]:
        """Token id → how often the window holds it."""
        return self._counts

    def observe(self, token_id: int) -> None:
        self._tokens.append(token_id)
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        if 0 <= self._params.repeat_last_n < len(self._tokens):
            self._forget(self._tokens.popleft())

    def _forget(self, token_id: int) -> None:
        self._counts[token_id] -= 1
        if not self._counts[token_id]:
            del self._counts[token_id]

    def penalized(self, row: Logits) -> tuple[TokenIds, Logits]:
        """The tokens in the window, and what their logits become."""
        params = self._params
        ids = np.fromiter(self._counts.keys(), np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        logits = row[ids]
        # Dividing a negative logit would make its token likelier.
        logits = np.where(logits <= 0, logits * params.repeat_penalty, logits / params.repeat_penalty)
        return ids, logits - (counts * params.frequency_penalty + params.presence_penalty)
