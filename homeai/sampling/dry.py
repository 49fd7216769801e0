"""DRY, "don't repeat yourself": a token that would make a passage longer which stood in the text before is penalised,
the more the longer the passage is.

Source: llama-sampler.cpp (`llama_sampler_dry_apply`). A passage never reaches back over a breaker, a text such as a
line end. Where each token stood is kept as the text grows, so a draw costs the places where its last token stood, not
the text's length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from homeai.request import SamplingParams
from homeai.sampling.row import Logits, TokenIds

MAX_EXPONENT_LOG: Final = 88.7  # e to this is the largest float32


def penalizes_repetition(params: SamplingParams) -> bool:
    return params.dry_multiplier > 0 and params.dry_base >= 1 and params.dry_penalty_last_n != 0


class Repetitions:
    """What of a text would repeat itself. `piece` gives a token's bytes."""

    def __init__(self, params: SamplingParams, token_ids: Sequence[int], piece: Callable[[int], bytes]) -> None:
        self._params = params
        self._piece = piece
        self._breakers = [text.encode() for text in params.dry_sequence_breakers if text]
        self._num_tail_bytes = max(map(len, self._breakers), default=1) - 1
        self._tail = b""  # of the text: a breaker may begin in it
        self._tokens: list[int] = []
        self._places: dict[int, list[int]] = {}
        self._last_breaker = -1  # where it ended
        for token_id in token_ids:
            self.observe(token_id)

    def observe(self, token_id: int) -> None:
        self._places.setdefault(token_id, []).append(len(self._tokens))
        text = self._tail + self._piece(token_id)
        if any(breaker in text for breaker in self._breakers):
            self._last_breaker = len(self._tokens)
            text = b""
        self._tail = text[-self._num_tail_bytes :] if self._num_tail_bytes else b""
        self._tokens.append(token_id)

    def penalties(self) -> dict[int, float]:
        """What to take from the logits of the tokens that would go on a passage, by id."""
        params = self._params
        max_exponent = MAX_EXPONENT_LOG / math.log(params.dry_base) if params.dry_base > 1.000001 else math.inf
        return {
            token_id: params.dry_multiplier * params.dry_base ** min(length - params.dry_allowed_length, max_exponent)
            for token_id, length in self._longest().items()
        }

    def penalized(self, row: Logits) -> tuple[TokenIds, Logits]:
        """The tokens concerned, and what their logits become."""
        penalties = self.penalties()
        ids = np.fromiter(penalties.keys(), np.intp, len(penalties))
        return ids, row[ids] - np.fromiter(penalties.values(), np.float32, len(penalties))

    def _longest(self) -> dict[int, int]:
        """Token id → length of the longest passage that it would go on, where that is not allowed."""
        tokens, last_n = self._tokens, self._params.dry_penalty_last_n
        allowed = max(1, self._params.dry_allowed_length)
        num_looked_at = len(tokens) if last_n < 0 else min(last_n, len(tokens))
        limit = min(num_looked_at, len(tokens) - 1 - self._last_breaker)
        longest: dict[int, int] = {}
        if num_looked_at <= allowed or limit < allowed:
            return longest
        first, last = len(tokens) - num_looked_at, len(tokens) - 1
        for place in reversed(self._places[tokens[-1]]):
            if place < first:
                break
            if place == last:
                continue
            length = self._length(place, min(limit, place - first + 1))
            if length >= allowed:
                following = tokens[place + 1]
                longest[following] = max(length, longest.get(following, 0))
        return longest

    def _length(self, place: int, limit: int) -> int:
        """How many tokens up to `place` are those that the text ends with."""
        tokens, last = self._tokens, len(self._tokens) - 1
        length = 0
        while length < limit and tokens[place - length] == tokens[last - length]:
            length += 1
        return length
