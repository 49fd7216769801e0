import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.request import SamplingParams
from homeai.sampling.penalties import PenaltyWindow, penalizes
from tests.sampling.sampling_reference import random_logits, reference_penalized


def test_repeat_penalty_lowers_positive_and_negative_logits() -> None:
    logits = np.array([2.0, -2.0, 2.0], np.float32)
    ids, penalized = PenaltyWindow(SamplingParams(repeat_penalty=2.0), [0, 1]).penalized(logits)
    logits[ids] = penalized
    assert logits.tolist() == [1, -4, 2]


def test_presence_counts_once_and_frequency_every_time() -> None:
    logits = np.zeros(3, np.float32)
    ids, penalized = PenaltyWindow(SamplingParams(presence_penalty=1.0, frequency_penalty=0.25), [0, 0, 1]).penalized(
        logits
    )
    logits[ids] = penalized
    assert logits.tolist() == [-1.5, -1.25, 0]


def test_tokens_that_left_the_window_are_free_again() -> None:
    logits = np.zeros(4, np.float32)
    window = PenaltyWindow(SamplingParams(presence_penalty=1.0, repeat_last_n=2), [0, 1])
    window.observe(2)
    ids, penalized = window.penalized(logits)
    logits[ids] = penalized
    assert logits.tolist() == [0, -1, -1, 0]


def test_forbidden_tokens_stay_forbidden() -> None:
    logits = np.full(2, -np.inf, np.float32)
    ids, penalized = PenaltyWindow(SamplingParams(repeat_penalty=1.5, presence_penalty=-2.0), [0]).penalized(logits)
    logits[ids] = penalized
    assert logits.tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize("neutral", [{}, {"repeat_penalty": 1.3, "repeat_last_n": 0}])
def test_neutral_penalties_need_no_window(neutral: dict[str, float]) -> None:
    assert not penalizes(SamplingParams(**neutral))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    prompt=st.lists(st.integers(0, 6), max_size=10),
    output=st.lists(st.integers(0, 6), max_size=10),
    repeat_last_n=st.sampled_from([-1, 1, 5, 64]),
    repeat_penalty=st.sampled_from([0.9, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([-0.2, 0.0, 0.3]),
)
def test_penalties_are_those_of_the_reference(prompt: list[int], output: list[int], **penalties: float) -> None:
    params = SamplingParams(**penalties)
    logits = random_logits(len(prompt), 7)
    expected = reference_penalized(logits.tolist(), params, prompt + output)
    window = PenaltyWindow(params, prompt)
    for token_id in output:
        window.observe(token_id)
    ids, penalized = window.penalized(logits)
    logits[ids] = penalized
    assert logits.tolist() == pytest.approx(expected, abs=1e-5)
