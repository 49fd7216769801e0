import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from homeai.request import SampledToken, SamplingParams
from homeai.sampling import BatchSampler, BrokenLogits, SamplerState
from homeai.sampling.philox import uniform
from tests.sampling.sampling_reference import (
    END_IDS,
    KINDS,
    random_logits,
    reference_survivors,
    reference_token,
    softmax,
)


def draw(
    logits: list[float], params: SamplingParams, output_index: int = 0, prompt: tuple[int, ...] = ()
) -> SampledToken:
    rows = np.array([logits], np.float32)
    return BatchSampler(len(logits), END_IDS).sample(rows, [SamplerState(params, prompt)], [output_index])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [7, 1000, 2500])
def test_tokens_are_those_of_the_reference(kind: str, vocab_size: int) -> None:
    params, prompt = KINDS[kind], list(range(min(vocab_size, 30)))
    logits, indices = random_logits(vocab_size, 25, vocab_size), list(range(25))
    sampled = BatchSampler(vocab_size, END_IDS).sample(logits, [SamplerState(params, prompt)] * 25, indices)
    expected = [
        reference_token(row, params, prompt, END_IDS, i, uniform(params.seed, i))
        for i, row in zip(indices, logits.tolist(), strict=True)
    ]
    assert [token.token_id for token in sampled] == expected


@pytest.mark.parametrize("kind", ["default", "untruncated", "top_p", "min_p", "hot"])
def test_tokens_are_drawn_with_their_probabilities(kind: str) -> None:
    params, num_draws, vocab_size = KINDS[kind], 10_000, 60
    logits = random_logits(5, vocab_size, scale=1.0)
    rows = np.broadcast_to(logits, (num_draws, vocab_size))
    states = [SamplerState(params, [])] * num_draws
    counts = Counter(token.token_id for token in BatchSampler(vocab_size, []).sample(rows, states, range(num_draws)))
    ids = reference_survivors(logits.tolist(), params)
    assert set(counts) <= set(ids)
    expected = np.array(softmax(logits[ids].tolist(), params.temperature)) * num_draws
    assert chisquare([counts[i] for i in ids], expected).pvalue > 0.01


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    num_rows, vocab_size = len(KINDS), 2500
    sampler, logits = BatchSampler(vocab_size, END_IDS), random_logits(3, num_rows, vocab_size)
    states = [SamplerState(params, [7, 8, 9]) for params in KINDS.values()]
    together = sampler.sample(logits, states, range(num_rows))
    alone = [sampler.sample(logits[i : i + 1], states[i : i + 1], [i])[0] for i in range(num_rows)]
    backwards = sampler.sample(logits[::-1].copy(), states[::-1], range(num_rows)[::-1])
    assert together == alone == backwards[::-1]


def test_seed_and_output_index_decide_the_draw() -> None:
    logits, params = [0.0] * 1000, KINDS["untruncated"]
    assert draw(logits, params, 4) == draw(logits, params, 4)
    assert draw(logits, params, 4) != draw(logits, params, 5)
    assert draw(logits, params, 4) != draw(logits, SamplingParams(top_k=0, top_p=1.0, min_p=0.0, seed=1), 4)


def test_a_change_of_rank_does_not_change_the_draw() -> None:
    for index in range(50):
        assert draw([1.0, 1.000001, 0.9], SamplingParams(), index) == draw(
            [1.000001, 1.0, 0.9], SamplingParams(), index
        )


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert draw([0.0, 1.0, 5.0, 2.0, 5.0], KINDS["greedy"]).token_id == 2


def test_no_end_token_before_min_tokens() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2)
    logits = [0.0, 9.0, 1.0, 8.0]
    assert [draw(logits, params, index).token_id for index in range(4)] == [2, 2, 1, 1]


def test_ignore_eos_forbids_every_end_token_for_good() -> None:
    assert draw([0.0, 9.0, 1.0, 8.0], SamplingParams(temperature=0.0, ignore_eos=True), 1000).token_id == 2


def test_penalties_come_after_bias() -> None:
    params = SamplingParams(temperature=0.0, repeat_penalty=2.0, logit_bias={0: 10.0})
    assert draw([-5.0, 0.0, 3.0], params, prompt=(0,)).token_id == 2  # (-5 + 10) / 2; the other way round: -10 + 10
    assert draw([-5.0, 0.0, 2.0], params, prompt=(0,)).token_id == 0


def test_rows_of_one_request_are_drawn_in_turn() -> None:
    """Each knows what the ones before it drew: with a ban on repeating itself no token comes twice."""
    params = SamplingParams(temperature=0.0, presence_penalty=1000.0, repeat_last_n=-1)
    state, sampler = SamplerState(params, []), BatchSampler(6, [])
    rows = np.array([[0, 1, 2, 3, 4, 5]] * 4, np.float32)
    drawn = []
    for row in range(4):
        drawn.append(sampler.draw(rows, row, state, row).token_id)
        state.observe(drawn[-1])
    assert drawn == [5, 4, 3, 2]


def test_logits_and_states_are_left_as_they_are() -> None:
    logits = random_logits(4, len(KINDS), 100)
    before = logits.copy()
    states = [SamplerState(params, [5, 6]) for params in KINDS.values()]
    sampler = BatchSampler(100, END_IDS)
    first = sampler.sample(logits, states, [0] * len(KINDS))
    assert np.array_equal(logits, before)
    assert sampler.sample(logits, states, [0] * len(KINDS)) == first


def test_logprobs_are_the_models_own() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={4: 100.0}, repeat_penalty=3.0, logprobs=2, ignore_eos=True)
    logits = [1.0, 4.0, 2.0, 3.0, 0.0]
    token = draw(logits, params, prompt=(0, 1, 2, 3, 4))
    expected = [math.log(probability) for probability in softmax(logits)]
    assert token.token_id == 4
    assert token.logprob == pytest.approx(expected[4])
    assert [top.token_id for top in token.top_logprobs] == [1, 3]
    assert [top.logprob for top in token.top_logprobs] == pytest.approx([expected[1], expected[3]])


def test_logprobs_zero_reports_only_the_drawn_token() -> None:
    token = draw([0.0, 0.0], SamplingParams(logprobs=0))
    assert token.logprob == pytest.approx(math.log(0.5))
    assert token.top_logprobs == ()


def test_no_logprobs_unless_asked() -> None:
    assert draw([0.0, 1.0], SamplingParams()).logprob is None


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_row_is_named(spoilt: float, kind: str) -> None:
    logits = random_logits(0, 3, 2500)
    logits[1, 2400] = spoilt
    with pytest.raises(BrokenLogits, match="row 1 of 3") as caught:
        BatchSampler(2500, END_IDS).sample(logits, [SamplerState(KINDS[kind], [])] * 3, [0] * 3)
    assert caught.value.row == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_nothing_but_minus_infinity_is_broken(kind: str) -> None:
    with pytest.raises(BrokenLogits, match="row 0 of 1"):
        draw([-math.inf] * 7, KINDS[kind])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_request_that_forbids_every_token_can_only_end(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, logit_bias=dict.fromkeys(range(5), -math.inf), logprobs=1)
    assert draw([0.0] * 5, params).token_id == END_IDS[0]


def test_an_empty_batch_draws_nothing() -> None:
    assert BatchSampler(7, END_IDS).sample(np.empty((0, 7), np.float32), [], []) == []
