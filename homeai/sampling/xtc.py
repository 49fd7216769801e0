"""Exclude top choices: now and then the likeliest tokens are left out, down to the last that is still likely.

Source: llama-sampler.cpp (`llama_sampler_xtc_apply`). The chance has numbers of its own: whether it strikes says
nothing about which token is drawn.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from homeai.sampling.philox import uniform
from homeai.sampling.row import Candidates
from homeai.sampling.weights import softmax_weights

STREAM: Final = 1 << 63  # no output is as long: indices from here on are the draws' own nowhere
MAX_THRESHOLD: Final = 0.5  # two tokens cannot both be likelier


def strikes(probability: float, seed: int, output_index: int) -> bool:
    return probability > 0 and uniform(seed, STREAM + output_index) < probability


def without_top_choices(candidates: Candidates, threshold: float) -> Candidates:
    """Of all that can be drawn, best first: without those that reach `threshold`, but for the last of them."""
    if threshold > MAX_THRESHOLD or candidates.ids.size < 2:
        return candidates
    weights = softmax_weights(candidates.logits)
    num_likely = int(np.count_nonzero(weights >= threshold * weights.sum()))
    first = max(num_likely - 1, 0)
    return Candidates(candidates.ids[first:], candidates.logits[first:])
