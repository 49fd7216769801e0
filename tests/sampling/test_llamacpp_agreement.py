"""llama.cpp's own samplers as the oracle: they need no model."""

import ctypes

import llama_cpp
import numpy as np
import pytest

from homeai.request import SamplingParams
from homeai.sampling.penalties import PenaltyWindow
from homeai.sampling.row import Logits, Row
from homeai.sampling.truncation import survivors
from tests.sampling.sampling_reference import random_logits


def applied(sampler: int, logits: Logits) -> dict[int, float]:
    """Token id → logit of what the sampler leaves."""
    tokens = (llama_cpp.llama_token_data * logits.size)(*((i, x, 0.0) for i, x in enumerate(logits.tolist())))
    array = llama_cpp.llama_token_data_array(tokens, logits.size, -1, False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    left = {array.data[i].id: array.data[i].logit for i in range(array.size)}
    llama_cpp.llama_sampler_free(sampler)
    return left


def chain(params: SamplingParams) -> int:
    sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for link in (
        llama_cpp.llama_sampler_init_top_k(params.top_k),
        llama_cpp.llama_sampler_init_top_p(params.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(params.min_p, 1),
    ):
        llama_cpp.llama_sampler_chain_add(sampler, link)
    return sampler


@pytest.mark.parametrize("top_k", [0, 5, 40])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.5])
def test_survivors_are_those_of_llamacpps_chain(top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    for logits in random_logits(11, 5, 3000):
        assert set(survivors(Row(logits), params).ids.tolist()) == set(applied(chain(params), logits))


@pytest.mark.parametrize("last_n", [3, 64])
def test_penalties_are_those_of_llamacpp(last_n: int) -> None:
    params = SamplingParams(repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, repeat_last_n=last_n)
    context, logits = [0, 1, 2, 2, 5, 6, 0, 0], random_logits(12, 10)
    sampler = llama_cpp.llama_sampler_init_penalties(logits.size, last_n, 1.3, 0.2, 0.4)
    for token_id in context:
        llama_cpp.llama_sampler_accept(sampler, token_id)
    theirs = applied(sampler, logits)
    ids, penalized = PenaltyWindow(params, context).penalized(logits)
    logits[ids] = penalized
    assert logits == pytest.approx(np.array([theirs[i] for i in range(10)]), abs=1e-5)
