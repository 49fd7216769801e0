import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.sampling.row import NUM_BLOCKS, Logits, Row
from tests.sampling.sampling_reference import random_logits, ranked

SIZES = [1, 7, 1000, NUM_BLOCKS - 1, NUM_BLOCKS, NUM_BLOCKS + 1, 5001, 3 * NUM_BLOCKS]


@st.composite
def logits_with_ties(draw: st.DrawFn) -> Logits:
    """Few distinct values, so that most of them are tied; some are -inf."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.integers(0, draw(st.integers(1, 2000)), draw(st.sampled_from(SIZES))).astype(np.float32)
    values[rng.random(values.size) < draw(st.sampled_from([0, 0.5]))] = -np.inf
    return values


@settings(derandomize=True, deadline=None, max_examples=150)
@given(logits_with_ties(), st.sampled_from([1, 2, 40, 1000, NUM_BLOCKS, NUM_BLOCKS + 1, 4000, 10**6]))
def test_top_k_is_the_first_k_by_logit_then_id(logits: Logits, k: int) -> None:
    candidates = Row(logits).top_k(k)
    assert candidates.ids.tolist() == ranked(logits.tolist())[:k]
    assert candidates.logits.tolist() == logits[candidates.ids].tolist()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(logits_with_ties(), st.floats(0, 1))
def test_at_least_is_every_token_that_reaches_the_threshold(logits: Logits, quantile: float) -> None:
    threshold = float(logits.max()) * quantile if np.isfinite(logits.max()) else 0.0
    expected = [i for i in ranked(logits.tolist()) if logits[i] >= threshold]
    if expected:
        assert Row(logits).at_least(threshold).ids.tolist() == expected


@settings(derandomize=True, deadline=None, max_examples=100)
@given(logits_with_ties())
def test_argmax_is_the_lowest_id_of_the_peak(logits: Logits) -> None:
    row = Row(logits)
    assert row.peak == logits.max()
    assert row.argmax() == logits.argmax()


def test_top_k_of_a_large_vocabulary() -> None:
    logits = random_logits(0, 262_144)
    assert Row(logits).top_k(40).ids.tolist() == np.argsort(-logits, kind="stable")[:40].tolist()


@pytest.mark.parametrize("size", [7, NUM_BLOCKS, 5001])
@pytest.mark.parametrize("position", [0, -1])
def test_one_nan_anywhere_makes_the_peak_nan(size: int, position: int) -> None:
    logits = random_logits(0, size)
    logits[position] = np.nan
    assert np.isnan(Row(logits).peak)
