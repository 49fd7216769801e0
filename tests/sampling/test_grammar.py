"""What a grammar allows: drawn as if all else had been masked first, and counted from its trigger on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from homeai.errors import GrammarFailed
from homeai.request import Grammar, SampledToken, SamplingParams
from homeai.sampling import BatchSampler, GrammarState, SamplerState
from homeai.sampling.grammar import Allowed, Bits
from homeai.sampling.philox import uniform
from tests.sampling.sampling_reference import random_logits, reference_token
from tests.sampling.test_sampler import END_IDS, KINDS

VOCAB_SIZE = 10_000


def bits_of(ids: Sequence[int], vocab_size: int) -> Bits:
    flags = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little")


class OneOf:
    """A matcher that allows the same tokens at every place."""

    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        self.ids = set(ids)
        self._bits = bits_of(ids, vocab_size)
        self.consumed: list[int] = []
        self.num_masks = 0

    def mask(self) -> Bits:
        self.num_masks += 1
        return self._bits

    def consume(self, token_id: int) -> None:
        if token_id not in self.ids:
            raise GrammarFailed(f"token {token_id} does not fit")
        self.consumed.append(token_id)

    def fits(self, token_ids: Sequence[int]) -> bool:
        return self.ids >= set(token_ids)

    def tokenize(self, text: bytes) -> list[int]:
        return list(text)


def state_of(
    ids: Sequence[int], params: SamplingParams, vocab_size: int = VOCAB_SIZE, prompt: Sequence[int] = ()
) -> SamplerState:
    matcher = OneOf(ids, vocab_size)
    grammar = GrammarState(Grammar(""), matcher, vocab_size, frozenset(END_IDS), piece=lambda i: bytes([i]))
    return SamplerState(params, prompt, grammar)


def draw(logits: np.ndarray, state: SamplerState, output_index: int = 0) -> SampledToken:
    rows = np.array([logits], np.float32)
    before = rows.copy()
    token = BatchSampler(rows.shape[1], END_IDS).draw(rows, 0, state, output_index)
    assert np.array_equal(rows, before), "the logits are as they were"
    return token


# ---- draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["one", "few", "most", "all but the likeliest", "the unlikeliest"])
def test_what_is_drawn_is_what_masking_all_else_first_would_give(kind: str, part: str) -> None:
    params = KINDS[kind]
    for index, logits in enumerate(random_logits(17, 8, VOCAB_SIZE)):
        order = logits.argsort()
        ids = sorted(
            {
                "one": [4711],
                "few": list(range(0, VOCAB_SIZE, 50)),
                "most": [i for i in range(VOCAB_SIZE) if i % 10],
                "all but the likeliest": order[:-500].tolist(),
                "the unlikeliest": order[:6000].tolist(),
            }[part]
        )
        masked = np.full(VOCAB_SIZE, -np.inf, np.float32)
        masked[ids] = logits[ids]
        expected = reference_token(masked.tolist(), params, [], END_IDS, index, uniform(params.seed, index))
        assert draw(logits, state_of(ids, params), index).token_id == expected


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_nothing_but_allowed_tokens_is_ever_drawn(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    ids = list(range(7, VOCAB_SIZE, 3))
    drawn = {draw(logits, state_of(ids, params)).token_id for logits in random_logits(3, 50, VOCAB_SIZE)}
    assert drawn <= set(ids)


def test_logprobs_are_the_models_own() -> None:
    logits = random_logits(2, VOCAB_SIZE)
    token = draw(logits, state_of([5], SamplingParams(logprobs=2)))
    assert token.logprob == pytest.approx(logits[5] - math.log(np.exp(logits.astype(np.float64)).sum()), abs=1e-4)
    assert [top.token_id for top in token.top_logprobs] == logits.argsort()[::-1][:2].tolist()


def test_other_rows_do_not_notice_a_grammar() -> None:
    rows = random_logits(5, 3, VOCAB_SIZE)
    free = [SamplerState(SamplingParams(seed=i), []) for i in range(3)]
    sampler = BatchSampler(VOCAB_SIZE, END_IDS)
    expected = sampler.sample(rows, free, [0, 0, 0])
    held = [free[0], state_of([9, 10], SamplingParams()), free[2]]
    sampled = sampler.sample(rows, held, [0, 0, 0])
    assert (sampled[0], sampled[2]) == (expected[0], expected[2])
    assert sampled[1].token_id in (9, 10)


@pytest.mark.parametrize("count", [1, VOCAB_SIZE - 5])
def test_allowed_tokens_that_bias_forbids_are_drawn_all_the_same(count: int) -> None:
    """The grammar is kept, whatever else was asked for."""
    ids = list(range(5, 5 + count))
    params = SamplingParams(logit_bias=dict.fromkeys(ids, -math.inf))
    assert draw(random_logits(1, VOCAB_SIZE), state_of(ids, params)).token_id in ids


def test_grammar_that_allows_nothing_fails() -> None:
    with pytest.raises(GrammarFailed, match="no token"):
        draw(random_logits(1, VOCAB_SIZE), state_of([], SamplingParams()))


@pytest.mark.parametrize("params", [SamplingParams(ignore_eos=True), SamplingParams(min_tokens=5)])
def test_text_that_must_go_on_ends_only_where_nothing_else_is_allowed(params: SamplingParams) -> None:
    logits = random_logits(1, VOCAB_SIZE)
    logits[list(END_IDS)] = 50.0
    assert draw(logits, state_of([*END_IDS, 7, 8], params)).token_id in (7, 8)
    assert draw(logits, state_of(END_IDS, params)).token_id in END_IDS


# ---- bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000])
def test_bits_are_read_by_token(vocab_size: int) -> None:
    ids = list(range(0, vocab_size, 7))
    allowed = Allowed(bits_of(ids, vocab_size), vocab_size)
    assert allowed.count == len(ids)
    assert allowed.ids.tolist() == ids
    assert allowed.among(np.arange(vocab_size)).tolist() == allowed.flags.tolist()


# ---- from when on the grammar counts ----------------------------------------------------------------

PIECES = {0: b"", 1: b"", 2: b"Hi", 3: b"", 4: b"<", 5: b"call", 6: b">", 7: b" <ca", 8: b"ll>{", 9: b"ll>x", 10: b"{"}
PIECES |= {11: b"<call>", 12: b"><"}


def lazy_state(matcher: OneOf, *triggers: str) -> GrammarState:
    return GrammarState(Grammar("", triggers or ("<call>",)), matcher, 300, frozenset(END_IDS), PIECES.__getitem__)


def take(state: GrammarState, *token_ids: int) -> None:
    for token_id in token_ids:
        assert not state.refuses(token_id)
        state.advance(token_id)


def test_text_is_free_until_its_trigger() -> None:
    matcher = OneOf([4, 5, 6, 10], 300)
    state = lazy_state(matcher)
    take(state, 2, 4, 5, 4, 5)
    assert state.allowed() is None
    take(state, 6)
    assert matcher.consumed == [4, 5, 6], "from the trigger's own beginning on"
    allowed = state.allowed()
    assert allowed is not None
    assert allowed.ids.tolist() == [4, 5, 6, 10]


def test_trigger_may_be_one_token_of_its_own() -> None:
    matcher = OneOf([11], 300)
    take(lazy_state(matcher), 2, 11)
    assert matcher.consumed == [11]


def test_trigger_may_begin_and_end_within_tokens() -> None:
    matcher = OneOf([*b"<ca", 8], 300)
    take(lazy_state(matcher), 2, 7, 8)
    assert matcher.consumed == [*b"<ca", 8]


def test_token_that_goes_on_behind_the_trigger_in_no_way_is_refused() -> None:
    state = lazy_state(OneOf([*b"<ca", 8], 300))
    take(state, 7)
    assert state.refuses(9)
    assert not state.refuses(8)


def test_refused_token_is_drawn_around() -> None:
    params = SamplingParams(temperature=0.0)
    state = SamplerState(params, [], lazy_state(OneOf([*b"<ca", 8], 300)))
    state.observe(7)
    logits = np.zeros(300, np.float32)
    logits[9], logits[8] = 9.0, 8.0
    assert draw(logits, state).token_id == 8


def test_earliest_of_several_triggers_counts() -> None:
    matcher = OneOf([4, 5, 6, 12], 300)
    take(lazy_state(matcher, "><", "<call>"), 4, 5, 12)
    assert matcher.consumed == [4, 5, 12]


def test_end_of_a_free_text_is_an_end() -> None:
    matcher = OneOf([11], 300)
    state = lazy_state(matcher)
    take(state, 2, END_IDS[0])
    assert state.allowed() is None
    assert matcher.consumed == []


def test_long_free_text_keeps_only_what_a_trigger_may_begin_in() -> None:
    state = lazy_state(OneOf([4, 5, 6], 300))
    take(state, *[2, 0] * 500)
    assert sum(len(piece) for _, piece in state._tail) <= len("<call>")


def test_mask_is_worked_out_once_per_token() -> None:
    matcher = OneOf([5, 6], 300)
    state = GrammarState(Grammar(""), matcher, 300, frozenset(END_IDS), PIECES.__getitem__)
    assert state.allowed() is state.allowed()
    state.advance(5)
    state.allowed()
    assert matcher.num_masks == 2


def test_end_token_ends_the_grammar() -> None:
    matcher = OneOf([5, *END_IDS], 300)
    state = GrammarState(Grammar(""), matcher, 300, frozenset(END_IDS), PIECES.__getitem__)
    take(state, 5, END_IDS[1])
    assert state.allowed() is None
    assert matcher.consumed == [5]


def test_token_that_does_not_fit_fails_aloud() -> None:
    state = GrammarState(Grammar(""), OneOf([5], 300), 300, frozenset(END_IDS), PIECES.__getitem__)
    with pytest.raises(GrammarFailed, match="token 6"):
        state.advance(6)
