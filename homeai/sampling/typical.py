"""Locally typical sampling: tokens that surprise about as much as the distribution does on average.

Source: llama-sampler.cpp (`llama_sampler_typical_apply`); Meister et al., "Locally typical sampling" (2022).
"""

from __future__ import annotations

import numpy as np

from homeai.sampling.row import Candidates
from homeai.sampling.weights import softmax_weights


def typical(candidates: Candidates, p: float) -> Candidates:
    """Of all that can be drawn, in their order, the most typical that weigh more than `p` together; 1: all."""
    if p >= 1:
        return candidates
    weights = softmax_weights(candidates.logits)
    probabilities = weights / weights.sum()
    with np.errstate(divide="ignore"):
        surprises = -np.log(probabilities)
    is_possible = probabilities > 0
    entropy = float(probabilities[is_possible] @ surprises[is_possible])
    order = np.abs(surprises - entropy).argsort(kind="stable")
    num_kept = int(probabilities[order].cumsum().searchsorted(p, side="right")) + 1
    kept = np.sort(order[:num_kept])
    return Candidates(candidates.ids[kept], candidates.logits[kept])
