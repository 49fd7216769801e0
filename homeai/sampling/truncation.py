"""Which tokens may be drawn: llama.cpp's default chain, top-k → typical → top-p → min-p, before any temperature.

Each but typical keeps a prefix of one order (highest logit first, then lowest id), so the survivors are the
shortest of three prefixes. top-p measures mass on what top-k left, min-p measures against the best token.
Source: llama-sampler.cpp (`llama_sampler_top_p_apply`, `llama_sampler_min_p_apply`).
"""

from __future__ import annotations

import math

import numpy as np

from homeai.request import SamplingParams
from homeai.sampling.row import Candidates, Row
from homeai.sampling.typical import typical
from homeai.sampling.weights import softmax_weights


def truncates(params: SamplingParams, vocab_size: int) -> bool:
    cuts_tail = _has_top_k(params, vocab_size) or params.top_p < 1 or params.min_p > 0
    return cuts_tail or params.typical_p < 1 or params.xtc_probability > 0


def survivors(row: Row, params: SamplingParams) -> Candidates:
    """One token or more. The row's peak is finite."""
    if _has_top_k(params, row.logits.size):
        candidates = row.top_k(params.top_k)
        mass = None
    elif params.typical_p < 1:  # what is typical depends on all of them
        candidates = row.at_least(-math.inf)
        mass = None
    else:
        mass = float(softmax_weights(row.logits).sum()) if params.top_p < 1 else None
        candidates = row.at_least(row.peak + _log_floor(row.logits.size, mass, params))
    return _truncated(candidates, params, mass)


def survivors_among(candidates: Candidates, params: SamplingParams, vocab_size: int) -> Candidates:
    """The same where only `candidates` can be drawn, all of them or the first `top_k`."""
    if _has_top_k(params, vocab_size):
        candidates = candidates.first(params.top_k)
    return _truncated(candidates, params, None)


def _truncated(candidates: Candidates, params: SamplingParams, mass: float | None) -> Candidates:
    candidates = typical(candidates, params.typical_p)
    return candidates.first(min(_num_top_p(candidates, params.top_p, mass), _num_min_p(candidates, params.min_p)))


def _has_top_k(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size


def _log_floor(vocab_size: int, mass: float | None, params: SamplingParams) -> float:
    """A floor, relative to the peak, under which no token can survive top-p and min-p.

    Tokens lighter than (1 - top_p) · mass / vocabulary weigh less than (1 - top_p) · mass all together, so
    top-p drops them all. Half of that, because sums round.
    """
    floor = _log(params.min_p)
    return floor if mass is None else max(floor, _log((1 - params.top_p) * mass / vocab_size / 2))


def _num_top_p(candidates: Candidates, top_p: float, mass: float | None) -> int:
    """Length of the shortest prefix that holds `top_p` of the mass; None is the candidates' own mass."""
    if top_p >= 1:
        return candidates.ids.size
    cumulative = softmax_weights(candidates.logits).cumsum()
    return int(cumulative.searchsorted(top_p * (cumulative[-1] if mass is None else mass))) + 1


def _num_min_p(candidates: Candidates, min_p: float) -> int:
    logits = candidates.logits
    return int(np.count_nonzero(logits >= logits[0] + _log(min_p)))


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
