"""What a sampler must remember of one request between two draws. Its owner is the runner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homeai.request import SamplingParams
from homeai.sampling.penalties import PenaltyWindow, penalizes


class SamplerState:
    """Parameters, the bias as arrays [n], and the penalties' window when there are penalties.

    Token ids in `logit_bias` and in the prompt are inside the vocabulary: whoever admits the request checks.
    """

    __slots__ = ("bias", "bias_ids", "params", "window")

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        self.params = params
        self.bias_ids = np.array(list(params.logit_bias.keys()), np.intp)
        self.bias = np.array(list(params.logit_bias.values()), np.float32)
        self.window = PenaltyWindow(params, prompt_token_ids) if penalizes(params) else None

    def observe(self, token_id: int) -> None:
        """A token was appended to the request's output."""
        if self.window is not None:
            self.window.observe(token_id)
