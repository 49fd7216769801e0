"""The sampler again, plain and slow: Python lists in the order the definitions are written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from homeai.request import SamplingParams

END_IDS = (1, 3)

KINDS = {
    "default": SamplingParams(),
    "greedy": SamplingParams(temperature=0.0),
    "untruncated": SamplingParams(top_k=0, top_p=1.0, min_p=0.0),
    "top_k": SamplingParams(top_p=1.0, min_p=0.0),
    "top_p": SamplingParams(top_k=0, min_p=0.0),
    "min_p": SamplingParams(top_k=0, top_p=1.0),
    "hot": SamplingParams(top_k=0, top_p=0.9, temperature=2.5),
    "penalised": SamplingParams(repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, repeat_last_n=20),
    "biased": SamplingParams(logit_bias={5: 8.0, 6: -100.0}),
    "endless": SamplingParams(ignore_eos=True),
    "wordy": SamplingParams(min_tokens=10),
}


def ranked(logits: Sequence[float]) -> list[int]:
    """Token ids by logit, highest first; equal logits by id."""
    return sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    peak = max(logits)
    weights = [math.exp((logit - peak) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def reference_survivors(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """Ids, best first: top-k, then top-p, then min-p."""
    ids = ranked(logits)
    if params.top_k > 0:
        ids = ids[: params.top_k]
    if params.top_p < 1:
        cumulative, kept = 0.0, []
        for token_id, probability in zip(ids, softmax([logits[i] for i in ids]), strict=True):
            kept.append(token_id)
            cumulative += probability
            if cumulative >= params.top_p:
                break
        ids = kept
    if params.min_p > 0:
        ids = [i for i in ids if logits[i] >= logits[ids[0]] + math.log(params.min_p)]
    return ids


def reference_pick(weights: Sequence[float], u: float) -> int:
    total, cumulative = math.fsum(weights), 0.0
    for position, weight in enumerate(weights):
        cumulative += weight
        if cumulative > u * total:
            return position
    return max(position for position, weight in enumerate(weights) if weight > 0)


def reference_penalized(logits: Sequence[float], params: SamplingParams, context: Sequence[int]) -> list[float]:
    window = context if params.repeat_last_n < 0 else context[max(0, len(context) - params.repeat_last_n) :]
    penalized = list(logits)
    for token_id, count in Counter(window).items():
        logit = penalized[token_id]
        logit = logit * params.repeat_penalty if logit <= 0 else logit / params.repeat_penalty
        penalized[token_id] = logit - count * params.frequency_penalty - params.presence_penalty
    return penalized


def reference_token(
    logits: Sequence[float],
    params: SamplingParams,
    context: Sequence[int],
    end_ids: Collection[int],
    output_index: int,
    u: float,
) -> int:
    edited = [float(logit) for logit in logits]
    if params.ignore_eos or output_index < params.min_tokens:
        for token_id in end_ids:
            edited[token_id] = -math.inf
    for token_id, bias in params.logit_bias.items():
        edited[token_id] += bias
    edited = reference_penalized(edited, params, context)
    if params.temperature <= 0:
        return ranked(edited)[0]
    ids = sorted(reference_survivors(edited, params))
    return ids[reference_pick(softmax([edited[i] for i in ids], params.temperature), u)]


def random_logits(seed: int, *shape: int, scale: float = 3.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
