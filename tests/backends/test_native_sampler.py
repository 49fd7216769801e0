"""The draws that scripts/llama-cpp.patch adds to llama.cpp, as it is built here, against `BatchSampler`'s."""

from __future__ import annotations

import math

import numpy as np
import pytest

from homeai.backends.llamacpp.native_sampler import MAX_TOP_K, NativeSampler
from homeai.request import SamplingParams
from homeai.sampling import BatchSampler, SamplerState
from homeai.sampling.row import Logits
from tests.sampling.sampling_reference import END_IDS, KINDS, random_logits

KNOWN = {name: params for name, params in KINDS.items() if params.top_k > 0}
PROMPT = [0, 2, 4, 5, 5]


def native_sampler(vocab_size: int) -> NativeSampler:
    return NativeSampler(BatchSampler(vocab_size, END_IDS))


def draw(logits: Logits, params: SamplingParams, output_index: int = 0) -> int | None:
    rows = np.array([logits], np.float32)
    return native_sampler(rows.shape[1]).draw(rows, [0], [SamplerState(params, PROMPT)], [output_index])[0]


def test_it_is_built_in() -> None:
    assert NativeSampler.is_built_in()


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("vocab_size", [7, 127, 128, 1000, 2500, 2 * 4096, 50_000])
def test_tokens_are_batch_samplers(kind: str, vocab_size: int) -> None:
    logits, indices = random_logits(vocab_size, 50, vocab_size), range(50)
    states = [SamplerState(KNOWN[kind], PROMPT)] * 50
    expected = BatchSampler(vocab_size, END_IDS).sample(logits, states, indices)
    drawn = native_sampler(vocab_size).draw(logits, range(50), states, indices)
    assert drawn == [token.token_id for token in expected]


def test_every_request_has_its_own_parameters() -> None:
    """Drawn together, in another order than their rows, some rows left out."""
    rng = np.random.default_rng(3)
    params = [
        SamplingParams(
            top_k=int(rng.integers(1, MAX_TOP_K + 1)),
            top_p=float(rng.choice([1.0, rng.uniform(0, 1), 0.0])),
            min_p=float(rng.choice([0.0, rng.uniform(0, 0.5), 1.0])),
            temperature=float(rng.choice([0.0, 1e-300, 0.1, 1.0, rng.uniform(0, 5), 1000.0])),
            seed=int(rng.integers(0, 2**63)),
            ignore_eos=bool(rng.integers(0, 2)),
        )
        for _ in range(600)
    ]
    sampler, logits = BatchSampler(3000, END_IDS), random_logits(5, 600, 3000)
    states = [SamplerState(each, PROMPT) for each in params]
    rows = [int(row) for row in rng.permutation(600)[:400]]
    drawn = NativeSampler(sampler).draw(logits, rows, [states[row] for row in rows], rows)
    assert drawn == [sampler.draw(logits, row, states[row], row).token_id for row in rows]


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("vocab_size", [7, 300, 2500])
def test_equal_logits_are_told_apart_by_their_ids(kind: str, vocab_size: int) -> None:
    logits = np.round(random_logits(1, 50, vocab_size))
    logits[0] = 0.0
    states = [SamplerState(KNOWN[kind], PROMPT)] * 50
    expected = BatchSampler(vocab_size, END_IDS).sample(logits, states, range(50))
    drawn = native_sampler(vocab_size).draw(logits, range(50), states, range(50))
    assert drawn == [token.token_id for token in expected]


def test_what_is_forbidden_in_the_logits_never_comes() -> None:
    logits = np.full(2500, -np.inf, np.float32)
    logits[[5, 2499]] = 1.0
    assert {draw(logits, SamplingParams(seed=seed)) for seed in range(20)} == {5, 2499}


def test_logits_are_left_as_they_are() -> None:
    logits = random_logits(4, len(KNOWN), 300)
    before = logits.copy()
    states = [SamplerState(params, PROMPT) for params in KNOWN.values()]
    native_sampler(300).draw(logits, range(len(KNOWN)), states, [0] * len(KNOWN))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
@pytest.mark.parametrize("token_id", [0, 1, 130, 2499])  # 1: where the request ignores it, it is out of sight
@pytest.mark.parametrize("kind", KNOWN)
def test_a_broken_row_is_left_to_the_other_sampler(kind: str, token_id: int, spoilt: float) -> None:
    logits = random_logits(0, 3, 2500)
    logits[1, token_id] = spoilt
    states = [SamplerState(KNOWN[kind], PROMPT)] * 3
    drawn = native_sampler(2500).draw(logits, range(3), states, [0] * 3)
    assert drawn[1] is None
    assert drawn[0] is not None
    assert drawn[2] is not None


def test_so_is_a_row_where_nothing_may_come() -> None:
    assert draw(np.full(300, -np.inf, np.float32), SamplingParams()) is None
    bans = SamplingParams(logit_bias=dict.fromkeys(range(300), -math.inf))
    assert draw(np.zeros(300, np.float32), bans) is None


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(typical_p=0.9),
        SamplingParams(xtc_probability=0.5),
        SamplingParams(logprobs=0),
        SamplingParams(top_k=0),
        SamplingParams(top_k=MAX_TOP_K + 1),
    ],
)
def test_rare_wishes_are_left_to_the_other_sampler(params: SamplingParams) -> None:
    assert not NativeSampler.knows(SamplerState(params, []))
    assert NativeSampler.knows(SamplerState(SamplingParams(temperature=0.0, top_k=0), []))
