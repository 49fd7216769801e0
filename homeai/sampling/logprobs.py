"""Log-probabilities under the model's own distribution: before mask, bias, penalties and temperature."""

from __future__ import annotations

import math

from homeai.request import SampledToken, TokenLogprob
from homeai.sampling.row import Row
from homeai.sampling.weights import softmax_weights


def with_logprobs(raw: Row, token_id: int, num_alternatives: int) -> SampledToken:
    """The drawn token with its log-probability and those of the likeliest tokens, best first."""
    log_mass = raw.peak + math.log(softmax_weights(raw.logits).sum())
    return SampledToken(token_id, float(raw.logits[token_id]) - log_mass, _likeliest(raw, num_alternatives, log_mass))


def _likeliest(raw: Row, n: int, log_mass: float) -> tuple[TokenLogprob, ...]:
    if n == 0:
        return ()
    ids, logits = raw.top_k(n)
    return tuple(map(TokenLogprob, ids.tolist(), (logits - log_mass).tolist()))
