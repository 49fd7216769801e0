import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.request import SamplingParams
from homeai.sampling.row import Row
from homeai.sampling.truncation import survivors
from tests.sampling.sampling_reference import random_logits, reference_survivors

OFF = SamplingParams(top_k=0, top_p=1.0, min_p=0.0)


def surviving_ids(logits: list[float], params: SamplingParams) -> list[int]:
    return survivors(Row(np.array(logits, np.float32)), params).ids.tolist()


def log(*probabilities: float) -> list[float]:
    return np.log(probabilities).tolist()


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    params = msgspec.structs.replace(OFF, top_p=0.75)
    assert surviving_ids(log(0.1, 0.5, 0.3, 0.1), params) == [1, 2]


def test_top_p_measures_what_top_k_left() -> None:
    params = msgspec.structs.replace(OFF, top_k=2, top_p=0.6)
    assert surviving_ids(log(0.1, 0.5, 0.3, 0.1), params) == [1]


def test_min_p_is_relative_to_the_best_token() -> None:
    params = msgspec.structs.replace(OFF, min_p=0.55)
    assert surviving_ids(log(0.1, 0.5, 0.3, 0.1), params) == [1, 2]


def test_filters_ignore_temperature() -> None:
    logits = random_logits(1, 1000).tolist()
    hot, cold = (SamplingParams(temperature=temperature) for temperature in (5.0, 0.01))
    assert surviving_ids(logits, hot) == surviving_ids(logits, cold)


@pytest.mark.parametrize("strictest", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_the_best_token_always_survives(strictest: dict[str, float]) -> None:
    assert surviving_ids(random_logits(2, 1000).tolist(), msgspec.structs.replace(OFF, **strictest))


def test_ties_at_the_last_place_go_to_the_lowest_ids() -> None:
    assert surviving_ids([1.0, 2.0, 1.0, 1.0], msgspec.structs.replace(OFF, top_k=3)) == [1, 0, 2]


def test_forbidden_tokens_survive_no_filter() -> None:
    logits = [0.0, -np.inf, 0.0, -np.inf]
    for params in (
        SamplingParams(),
        msgspec.structs.replace(OFF, min_p=0.01),
        msgspec.structs.replace(OFF, top_p=0.99),
    ):
        assert surviving_ids(logits, params) == [0, 2]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 7, 1000, 2500]),
    scale=st.sampled_from([0.0, 0.01, 1.0, 3.0, 30.0]),
    num_decimals=st.sampled_from([0, 6]),
    top_k=st.sampled_from([0, 1, 3, 40, 2200, 10**6]),
    top_p=st.sampled_from([0.01, 0.5, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.5, 0.999]),
)
def test_survivors_are_those_of_the_reference(
    seed: int, size: int, scale: float, num_decimals: int, top_k: int, top_p: float, min_p: float
) -> None:
    """Where rounding may decide, between the reference's answers just inside and just outside."""
    logits = random_logits(seed, size, scale=scale).round(num_decimals)
    params = msgspec.structs.replace(OFF, top_k=top_k, top_p=top_p, min_p=min_p)
    wider, narrower = (
        msgspec.structs.replace(params, top_p=top_p + step if top_p < 1 else 1.0, min_p=min_p * (1 - step))
        for step in (1e-6, -1e-6)
    )
    ids = survivors(Row(logits), params).ids.tolist()
    most = reference_survivors(logits.tolist(), wider)
    assert ids == most[: len(ids)]
    assert len(reference_survivors(logits.tolist(), narrower)) <= len(ids) <= len(most)
