"""Draws on the device are those of `homeai.sampling`, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.backends.torch.device_sampler import ASK_HOST, DeviceSampler
from homeai.request import Grammar, SamplingParams
from homeai.sampling.grammar import GrammarState
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState

VOCAB_SIZE = 2500
ENDS = frozenset({1, 106})


def drawn_on_device(logits: np.ndarray, states: list[SamplerState], indices: list[int]) -> list[int]:
    sampler = DeviceSampler(VOCAB_SIZE, ENDS, torch.device("cpu"))
    before = logits.copy()
    tokens = sampler.draw(torch.from_numpy(logits), states, indices)
    assert np.array_equal(logits, before, equal_nan=True)
    return tokens


def drawn_on_host(logits: np.ndarray, states: list[SamplerState], indices: list[int]) -> list[int]:
    return [token.token_id for token in BatchSampler(VOCAB_SIZE, ENDS).sample(logits, states, indices)]


def logits_of(num_rows: int, seed: int, *, is_coarse: bool) -> np.ndarray:
    """Coarse: as those of a model in bfloat16, with many equal ones."""
    logits = (4 * np.random.default_rng(seed).standard_normal((num_rows, VOCAB_SIZE))).astype(np.float32)
    return torch.from_numpy(logits).bfloat16().float().numpy() if is_coarse else logits


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]),
        "top_k": st.sampled_from([0, 1, 5, 40, 1500, 9999]),
        "top_p": st.sampled_from([0.0, 0.3, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5]),
        "repeat_penalty": st.sampled_from([1.0, 1.3, 0.7]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, -0.5, 0.8]),
        "repeat_last_n": st.sampled_from([0, 4, -1]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.floats(-100, 100, width=32), max_size=5),
        "ignore_eos": st.booleans(),
        "min_tokens": st.sampled_from([0, 3]),
        "seed": st.integers(0, 2**63 - 1),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(PARAMS, min_size=1, max_size=6),
    seed=st.integers(0, 99),
    index=st.integers(0, 6),
    coarse=st.booleans(),
)
def test_a_row_draws_the_same_token_here_and_there(
    rows: list[dict[str, Any]], seed: int, index: int, coarse: bool
) -> None:
    logits = logits_of(len(rows), seed, is_coarse=coarse)
    text = np.random.default_rng(seed).integers(0, VOCAB_SIZE, 50).tolist() * 2
    states = [SamplerState(SamplingParams(**params), text) for params in rows]
    indices = [index + row for row in range(len(rows))]
    assert drawn_on_device(logits, states, indices) == drawn_on_host(logits, states, indices)


class Only:
    """A matcher that allows certain tokens."""

    def __init__(self, *token_ids: int) -> None:
        flags = np.zeros(-(-VOCAB_SIZE // 32) * 32, np.uint8)
        flags[list(token_ids)] = 1
        self._bits = np.packbits(flags, bitorder="little")

    def mask(self) -> np.ndarray:
        return self._bits

    def consume(self, token_id: int) -> None:
        pass

    def fits(self, token_ids: object) -> bool:
        return True

    def tokenize(self, text: bytes) -> list[int]:
        return []


def state_with(matcher: Only, **params: Any) -> SamplerState:
    grammar = GrammarState(Grammar("x"), matcher, VOCAB_SIZE, ENDS, lambda token_id: b"")  # type: ignore[arg-type]
    return SamplerState(SamplingParams(**params), [5, 6, 7], grammar)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_bits_are_applied_on_the_device(temperature: float) -> None:
    logits = logits_of(4, 3, is_coarse=True)
    states = [
        state_with(Only(31, 32, 2499), temperature=temperature, top_k=0),
        SamplerState(SamplingParams(temperature=temperature), [5]),
        state_with(Only(1), temperature=temperature, ignore_eos=True),
        state_with(Only(*range(900, 1000)), temperature=temperature),
    ]
    indices = [0, 1, 2, 3]
    tokens = drawn_on_device(logits, states, indices)
    assert tokens == drawn_on_host(logits, states, indices)
    assert tokens[0] in (31, 32, 2499)
    assert tokens[2] == 1


def test_rows_out_of_the_ordinary_are_left_to_the_host() -> None:
    logits = logits_of(4, 5, is_coarse=False)
    logits[0, 7] = np.nan
    logits[1, 7] = np.inf
    everything = dict.fromkeys(range(VOCAB_SIZE), -np.inf)
    states = [
        SamplerState(SamplingParams(), []),
        SamplerState(SamplingParams(), []),
        SamplerState(SamplingParams(logit_bias=everything), []),
        state_with(Only()),
    ]
    assert drawn_on_device(logits, states, [0] * 4) == [ASK_HOST] * 4


@pytest.mark.parametrize(
    "params", [{"typical_p": 0.5}, {"xtc_probability": 0.1}, {"dry_multiplier": 1.0}, {"logprobs": 0}]
)
def test_rare_filters_are_left_to_the_host(params: dict[str, Any]) -> None:
    assert not DeviceSampler.knows(SamplerState(SamplingParams(**params), []))
    assert DeviceSampler.knows(SamplerState(SamplingParams(), []))
