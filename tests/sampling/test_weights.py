import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from homeai.sampling.weights import ALMOST_ONE, NUM_PER_GROUP, pick, softmax_weights
from tests.sampling.sampling_reference import random_logits, reference_pick, softmax


@pytest.mark.parametrize("temperature", [0.1, 0.8, 1.0, 5.0])
def test_weights_are_a_softmax_whose_best_token_weighs_one(temperature: float) -> None:
    logits = random_logits(0, 100)
    weights = softmax_weights(logits, temperature)
    assert weights.max() == 1
    assert weights / weights.sum() == pytest.approx(softmax(logits.tolist(), temperature), rel=1e-9)


def test_the_smallest_temperatures_leave_only_the_best() -> None:
    for temperature in (1e-300, 5e-324):  # the latter overflows, which is a warning elsewhere
        assert softmax_weights(np.array([0.0, 3.0, 2.9], np.float32), temperature).tolist() == [0, 1, 0]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 40, NUM_PER_GROUP, NUM_PER_GROUP + 1, 3000]),
    u=st.floats(0, ALMOST_ONE),
)
def test_pick_is_the_inverse_of_the_cumulative_sum(seed: int, size: int, u: float) -> None:
    weights = softmax_weights(random_logits(seed, size))
    edges = weights.cumsum() / weights.sum()
    assume(np.abs(edges - u).min() > 1e-12 or u == 0)
    assert pick(weights, u) == reference_pick(weights.tolist(), u)


@pytest.mark.parametrize("size", [3, 3 * NUM_PER_GROUP, 3 * NUM_PER_GROUP + 5])
@pytest.mark.parametrize("u", [0.0, 0.3, 0.5, ALMOST_ONE])
def test_a_token_without_weight_is_never_picked(size: int, u: float) -> None:
    weights = np.zeros(size)
    weights[size // 2] = 0.1
    assert pick(weights, u) == size // 2


@pytest.mark.parametrize("size", [40, 3 * NUM_PER_GROUP + 5])
def test_every_token_is_picked_in_its_own_interval(size: int) -> None:
    weights = softmax_weights(random_logits(1, size, scale=1.0))
    ends = weights.cumsum() / weights.sum()
    middles = ends - weights / weights.sum() / 2
    assert [pick(weights, u) for u in middles.tolist()] == list(range(size))
