"""What a sampler must remember of one request between two draws. Its owner is the runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from homeai.request import SamplingParams
from homeai.sampling.dry import Repetitions, penalizes_repetition
from homeai.sampling.grammar import GrammarState
from homeai.sampling.penalties import PenaltyWindow, penalizes


class SamplerState:
    """Parameters, the bias as arrays [n]; where the request has them, the penalties' window and the grammar.

    `piece` gives a token's bytes: in some of them a passage ends that DRY must not look beyond.
    Token ids in `logit_bias` and in the prompt are inside the vocabulary: whoever admits the request checks.
    """

    __slots__ = ("bias", "bias_ids", "grammar", "params", "repetitions", "window")

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        grammar: GrammarState | None = None,
        *,
        piece: Callable[[int], bytes] = lambda token_id: b"",
    ) -> None:
        self.params = params
        self.grammar = grammar
        self.bias_ids = np.array(list(params.logit_bias.keys()), np.intp)
        self.bias = np.array(list(params.logit_bias.values()), np.float32)
        self.window = PenaltyWindow(params, prompt_token_ids) if penalizes(params) else None
        self.repetitions = Repetitions(params, prompt_token_ids, piece) if penalizes_repetition(params) else None

    @property
    def has_memory(self) -> bool:
        """Whether a draw depends on the tokens before it, beyond the logits."""
        return self.grammar is not None or self.window is not None or self.repetitions is not None

    def observe(self, token_id: int) -> None:
        """A token was appended to the request's output. Raises `GrammarFailed`."""
        if self.grammar is not None:
            self.grammar.advance(token_id)
        if self.window is not None:
            self.window.observe(token_id)
        if self.repetitions is not None:
            self.repetitions.observe(token_id)
