"""Unnormalised probabilities, and one of them picked by a uniform number.

Doubles throughout: any positive temperature is safe, and they cost little beside reading the row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float64]

NUM_PER_GROUP = 512
ALMOST_ONE = 1 - 2.0**-53


def softmax_weights(logits: npt.NDArray[np.floating], temperature: float = 1.0) -> Weights:
    """exp((logit - max) / temperature), [n]: the best token weighs 1. The maximum is finite."""
    weights = logits.astype(np.float64)
    weights -= logits.max()
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # near 0 all but the best are infinitely unlikely
            weights /= temperature
    return np.exp(weights, out=weights)


def pick(weights: Weights, u: float) -> int:
    """The position where the cumulative weight first exceeds u · total, 0 ≤ u < 1; never a weight of zero.

    A long array is picked from in two levels, a group and a position in it: a cumulative sum over all of it
    is a chain of dependent additions (0.9 ms for 262,144), the sums of groups are not (0.1 ms).
    """
    if weights.size <= NUM_PER_GROUP:
        cumulative = weights.cumsum()
        return int(cumulative.searchsorted(u * cumulative[-1], side="right"))
    starts = np.arange(0, weights.size, NUM_PER_GROUP)
    cumulative = np.add.reduceat(weights, starts).cumsum()
    target = u * cumulative[-1]
    group = int(cumulative.searchsorted(target, side="right"))
    before = cumulative[group - 1] if group else 0.0
    rest = min((target - before) / (cumulative[group] - before), ALMOST_ONE)
    start = group * NUM_PER_GROUP
    return start + pick(weights[start : start + NUM_PER_GROUP], float(rest))
