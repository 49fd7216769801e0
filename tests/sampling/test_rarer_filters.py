"""typical, XTC and DRY: as llama.cpp does them, with its own samplers as the oracle where they need no model."""

from __future__ import annotations

import itertools
from typing import Any

import llama_cpp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.request import SamplingParams
from homeai.sampling.dry import Repetitions, penalizes_repetition
from homeai.sampling.row import Candidates, Row
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState
from homeai.sampling.typical import typical
from homeai.sampling.xtc import strikes, without_top_choices
from tests.sampling.sampling_reference import random_logits
from tests.sampling.test_llamacpp_agreement import applied

ALL = -np.inf


def candidates(seed: int, size: int = 300) -> tuple[Candidates, np.ndarray]:
    logits = random_logits(seed, size)
    return Row(logits.copy()).at_least(ALL), logits


def is_best_first(found: Candidates) -> bool:
    return bool((np.diff(found.logits) <= 0).all())


@pytest.mark.parametrize("p", [0.0, 0.2, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_typical_tokens_are_those_of_llamacpp(seed: int, p: float) -> None:
    everything, logits = candidates(seed)
    kept = typical(everything, p)
    assert set(kept.ids.tolist()) == set(applied(llama_cpp.llama_sampler_init_typical(p, 0), logits))
    assert is_best_first(kept)


def test_impossible_tokens_are_not_typical() -> None:
    logits = np.array([1.0, -np.inf, 0.5, -np.inf], np.float32)
    assert set(typical(Row(logits).at_least(ALL), 0.99).ids.tolist()) == {0, 2}


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.1, 0.3, 0.5, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_top_choices_are_those_of_llamacpp(seed: int, threshold: float) -> None:
    everything, logits = candidates(seed, 30)
    kept = without_top_choices(everything, threshold)
    assert set(kept.ids.tolist()) == set(applied(llama_cpp.llama_sampler_init_xtc(1.0, threshold, 0, 5), logits))
    assert is_best_first(kept)


def test_only_token_is_never_left_out() -> None:
    one = Row(np.array([3.0], np.float32)).at_least(ALL)
    assert without_top_choices(one, 0.1).ids.tolist() == [0]


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_top_choices_are_left_out_as_often_as_was_asked_for(probability: float) -> None:
    struck = [strikes(probability, 7, index) for index in range(4000)]
    assert sum(struck) / len(struck) == pytest.approx(probability, abs=0.03)
    assert struck == [strikes(probability, 7, index) for index in range(4000)]


# ---- DRY -----------------------------------------------------------------------------------------------------


def piece(token_id: int) -> bytes:
    return chr(token_id).encode()


def dry(**options: Any) -> SamplingParams:
    """One token for each character; "." breaks passages."""
    defaults = {"multiplier": 1.0, "base": 2.0, "sequence_breakers": (".",)}
    return SamplingParams(**{f"dry_{name}": value for name, value in (defaults | options).items()})


def penalties(text: str, **options: Any) -> dict[str, float]:
    found = Repetitions(dry(**options), [ord(c) for c in text], piece).penalties()
    return {chr(token_id): penalty for token_id, penalty in found.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("abcd", {}),
        ("abxab", {"x": 1.0}),
        ("xabcyabc", {"y": 2.0}),
        ("zabc1yabc2abc", {"1": 2.0, "2": 2.0}),
        ("abc1zbc2abc", {"1": 2.0, "2": 1.0}),
        ("aaaa", {"a": 2.0}),
        ("ax.bcxbc", {"x": 1.0}),
        ("abcxa.bc", {"x": 1.0}),
        ("abcx.c", {}),
        ("abcxabc.", {}),
    ],
)
def test_what_would_repeat_a_passage_is_penalised_by_its_length(text: str, expected: dict[str, float]) -> None:
    assert penalties(text) == expected


def test_only_the_last_tokens_are_looked_at() -> None:
    assert penalties("abcxyzabc", penalty_last_n=6) == {}
    assert penalties("abcxyzabc", penalty_last_n=9) == penalties("abcxyzabc") == {"x": 2.0}
    assert penalties("abcxyzabc", penalty_last_n=0) == {}


def test_longer_passages_may_be_allowed() -> None:
    assert penalties("abcxabc", allowed_length=3) == {"x": 1.0}
    assert penalties("abcxabc", allowed_length=4) == {}


def test_filter_is_off_unless_it_is_asked_for() -> None:
    assert not penalizes_repetition(SamplingParams())
    assert not penalizes_repetition(dry(penalty_last_n=0))
    assert penalizes_repetition(dry())


def test_endless_repetition_has_a_finite_penalty() -> None:
    (penalty,) = penalties("a" * 3000, base=4.0).values()
    assert np.isfinite(np.float32(penalty))


def test_breaker_may_be_several_tokens_long() -> None:
    assert penalties("abcx--abc", sequence_breakers=("--",)) == {"x": 2.0}
    assert penalties("bcx--bc", sequence_breakers=("--", "!")) == {"x": 1.0}
    assert penalties("a--bcxa--bc", sequence_breakers=("--",)) == {"x": 1.0}
    assert penalties("a-bcxa-bc", sequence_breakers=("--",)) == {"x": 4.0}
    assert penalties("a.bcxa.bc", sequence_breakers=()) == {"x": 4.0}


def reference(text: list[int], params: SamplingParams) -> dict[int, int]:
    """By definition: for every earlier place, how much before it the text ends with too. 3 breaks passages."""
    last_n = params.dry_penalty_last_n
    looked_at = text if last_n < 0 else text[max(0, len(text) - last_n) :]
    breakers = [-1, *(i for i, token in enumerate(text) if token == 3)]
    limit = min(len(looked_at), len(text) - 1 - breakers[-1])
    longest: dict[int, int] = {}
    for place in range(len(looked_at) - 1):
        pairs = zip(reversed(looked_at[: place + 1]), reversed(looked_at), strict=False)
        length = min(limit, sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        if length >= params.dry_allowed_length:
            longest[looked_at[place + 1]] = max(length, longest.get(looked_at[place + 1], 0))
    return longest


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(-1, 32), st.integers(1, 4))
def test_passages_are_found_wherever_they_are(text: list[int], last_n: int, allowed_length: int) -> None:
    params = dry(base=2.0, penalty_last_n=last_n, allowed_length=allowed_length, sequence_breakers=("\x03",))
    expected = {token_id: 2.0 ** (n - allowed_length) for token_id, n in reference(text, params).items()}
    assert Repetitions(params, text, piece).penalties() == expected


# ---- in the chain --------------------------------------------------------------------------------------------


def drawn(params: SamplingParams, logits: np.ndarray, num_draws: int = 200) -> set[int]:
    sampler = BatchSampler(logits.size, ())
    rows = logits.reshape(1, -1)
    states = (SamplerState(msgspec.structs.replace(params, seed=seed), ()) for seed in range(num_draws))
    return {sampler.draw(rows, 0, state, 0).token_id for state in states}


OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


@pytest.mark.parametrize("chain", [OFF, OFF | {"top_k": 6}, OFF | {"top_p": 0.8}], ids=str)
def test_only_typical_tokens_are_drawn(chain: dict[str, Any]) -> None:
    _, logits = candidates(3, 12)
    everything = Row(logits.copy()).top_k(chain["top_k"] or 12)
    kept = set(typical(everything, 0.5).ids.tolist())
    assert drawn(SamplingParams(**chain, typical_p=0.5), logits) <= kept < set(range(12))


@pytest.mark.parametrize("chain", [OFF, OFF | {"top_k": 6}, OFF | {"min_p": 0.05}], ids=str)
def test_top_choices_are_not_drawn_when_it_strikes(chain: dict[str, Any]) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))
    assert drawn(SamplingParams(**chain, xtc_probability=1.0, xtc_threshold=0.15), logits) <= {2, 3, 4}
    assert {0, 2} <= drawn(SamplingParams(**chain, xtc_probability=0.5, xtc_threshold=0.15), logits)


def test_passage_is_not_repeated() -> None:
    logits = np.zeros(256, np.float32)
    logits[[ord("x"), ord("y")]] = 5.0, 4.0
    params = SamplingParams(temperature=0, dry_multiplier=2.0)
    sampler = BatchSampler(logits.size, ())
    state = SamplerState(params, [*b"abxab"], piece=piece)
    assert sampler.draw(logits.reshape(1, -1), 0, state, 0).token_id == ord("y")
    fresh = SamplerState(params, [*b"abcab"], piece=piece)
    assert sampler.draw(logits.reshape(1, -1), 0, fresh, 0).token_id == ord("x")
    state.observe(ord("\n"))
    assert sampler.draw(logits.reshape(1, -1), 0, state, 1).token_id == ord("x")
    assert logits[ord("x")] == 5.0
