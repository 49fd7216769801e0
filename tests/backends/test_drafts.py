"""Prompt lookup without a model: what is guessed, how trust is won and lost, what a longer step may cost."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from homeai.backends.shared.drafts import NGRAM_SIZE, STEP_SIZES, Drafter, Lookup, StepCosts, shared_out


def continuation_by_search(text: list[int], count: int) -> list[int]:
    """What the index must find: where the last n-gram occurred before, the latest time."""
    for end in range(len(text) - 1, NGRAM_SIZE - 1, -1):
        if text[end - NGRAM_SIZE : end] == text[-NGRAM_SIZE:]:
            guesses = text[end : end + count]
            while len(guesses) < count:
                guesses.append(guesses[len(guesses) - (len(text) - end)])
            return guesses
    return []


def costs_of(**seconds: float) -> StepCosts:
    """costs_of(t1=…, t16=…): a step of 1 token, of 16."""
    costs = StepCosts()
    for name, value in seconds.items():
        costs.observe(int(name[1:]), value)
    return costs


FREE = costs_of(t1=1.0, t32=1.0)
DEAR = costs_of(t1=1.0, t2=100.0)


# ---- lookup -----------------------------------------------------------------------------------------


def test_text_goes_on_as_the_last_time() -> None:
    lookup = Lookup([1, 2, 3, 4, 5, 6, 9, 2, 3, 4])
    assert lookup.continuation(3) == [5, 6, 9]
    assert lookup.length == 3


def test_latest_place_is_taken() -> None:
    assert Lookup([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).continuation(1) == [5]


def test_new_ending_has_no_continuation() -> None:
    for text in ([], [1], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 9, 2, 3]):
        lookup = Lookup(text)
        assert (lookup.source, lookup.length, lookup.continuation(4)) == (None, 0, [])


def test_guess_that_runs_into_itself_goes_round() -> None:
    assert Lookup([7, 1, 2, 1, 2, 1, 2]).continuation(5) == [1, 2, 1, 2, 1]
    assert Lookup([4, 4, 4, 4]).continuation(3) == [4, 4, 4]


def test_length_is_how_far_the_pasts_are_alike() -> None:
    lookup = Lookup([1, 2, 3, 4, 5, 6, 0, 2, 3, 4, 5])
    assert lookup.length == 4
    lookup.append(6)
    assert (lookup.length, lookup.continuation(1)) == (5, [0])
    lookup.append(8)
    assert lookup.length == 0


@pytest.mark.parametrize("num_kinds", [2, 3, 8])
def test_index_finds_what_a_search_finds(num_kinds: int) -> None:
    """Beside it an index that saw the text at once. One that follows a place may stay there while it holds."""
    choose = random.Random(num_kinds)
    text = [choose.randrange(num_kinds) for _ in range(20)]
    growing = Lookup(text)
    for _ in range(400):
        whole = Lookup(text)
        assert whole.continuation(6) == continuation_by_search(text, 6)
        assert (growing.source is None) == (whole.source is None)
        if growing.source is not None:
            assert text[growing.source - NGRAM_SIZE : growing.source] == text[-NGRAM_SIZE:]
        text.append(choose.randrange(num_kinds))
        growing.append(text[-1])


# ---- trust ------------------------------------------------------------------------------------------


def propose(drafter: Drafter, costs: StepCosts, max_drafts: int = 15) -> list[int]:
    (count,) = shared_out([drafter.chances(max_drafts)], 1, 1, max_drafts, costs)
    return drafter.propose(count)


def test_nothing_is_proposed_for_a_new_text() -> None:
    assert propose(Drafter(list(range(50))), FREE) == []


def test_no_more_is_proposed_than_may_be() -> None:
    drafter = Drafter([*range(40)] * 2)
    for max_drafts in range(16):
        most = max((size - 1 for size in STEP_SIZES if size - 1 <= max_drafts), default=0)
        assert propose(drafter, FREE, max_drafts) == [*range(40)][:most]


def test_guesses_that_hold_make_longer_ones() -> None:
    costs = costs_of(t1=1.0, t2=1.5, t4=2.0, t8=3.0, t12=3.8, t16=4.5)
    text = random.Random(1).sample(range(1000), 200)
    drafter = Drafter([*text, *text[:3]])
    lengths = []
    for token in text[3:60]:
        lengths.append(len(propose(drafter, costs)))
        drafter.append(token)
    assert lengths[0] < 15
    assert lengths[-1] == 15
    assert lengths == sorted(lengths)


def test_guesses_that_fail_make_shorter_ones_and_then_none() -> None:
    """A text that begins like itself again and again, and always goes on differently."""
    costs = costs_of(t1=1.0, t2=1.5, t4=2.0, t8=3.0, t12=3.8, t16=4.5)
    drafter = Drafter([])
    lengths = []
    for i in range(40):
        for token in (1, 2, 3):
            drafter.append(token)
        lengths.append(len(propose(drafter, costs)))
        drafter.append(100 + i)
    assert lengths[0] == 0, "nothing was seen before"
    assert lengths[-1] == 0
    drafter = Drafter([])
    for i in range(40):
        for token in (1, 2, 3):
            drafter.append(token)
        drafter.append(100 + i)
    for token in (1, 2, 3):
        drafter.append(token)
    assert len(propose(drafter, costs)) == 0


def test_trust_is_lost_and_won_without_computing_guesses() -> None:
    costs = costs_of(t1=1.0, t2=1.2, t4=1.6, t8=2.4, t16=4.0)
    drafter = Drafter([])
    for i in range(60):
        for token in (1, 2, 3, 100 + i):
            drafter.append(token)
    for token in (1, 2, 3):
        drafter.append(token)
    assert propose(drafter, costs) == []
    for _ in range(60):
        for token in (55, 1, 2, 3):
            drafter.append(token)
    assert propose(drafter, costs)[:4] == [55, 1, 2, 3]


def test_what_costs_more_than_it_brings_is_not_proposed() -> None:
    drafter = Drafter([*range(40)] * 2)
    assert propose(drafter, DEAR) == []


def test_sizes_that_the_machine_is_good_at_are_chosen() -> None:
    costs = costs_of(t1=1.0, t2=2.0, t4=3.3, t8=3.4, t12=7.0, t16=9.0)
    assert len(propose(Drafter([*range(40)] * 2), costs)) == 7


def test_others_in_the_batch_pay_too() -> None:
    """A step twice as long is worth it for one request, not for eight that wait for it."""
    chances = Drafter([*range(40)] * 2).chances(7)
    costs = costs_of(t1=1.0, t2=2.0, t8=2.0, t9=4.0)
    assert shared_out([chances], 1, 1, 7, costs) == [7]
    assert shared_out([chances], 8, 8, 7, costs) == [0]


# ---- several texts ----------------------------------------------------------------------------------


def test_likeliest_guesses_of_all_are_computed() -> None:
    assert shared_out([[0.9, 0.5], [], [0.8, 0.7, 0.6]], 4, 4, 4, FREE) == [1, 0, 3]


def test_equal_chances_are_shared_out_evenly() -> None:
    chances = [0.9**n for n in range(1, 16)]
    assert shared_out([chances] * 4, 4, 4, 12, FREE) == [3, 3, 3, 3]


def test_room_is_shared() -> None:
    for room in range(20):
        counts = shared_out([[0.9, 0.8, 0.7]] * 5, 4, 4, room, FREE)
        assert sum(counts) <= room


@pytest.mark.parametrize("seed", range(5))
def test_shares_bring_the_most_tokens_a_second(seed: int) -> None:
    """Of all ways to hand out guesses, tried one by one."""
    rng = random.Random(seed)
    chances = [sorted((rng.random() for _ in range(4)), reverse=True) for _ in range(3)]
    costs = costs_of(t3=1.0, t4=1.0 + rng.random() / 4, t8=1.3 + rng.random() / 2, t12=2.0 + rng.random())

    def gain(counts: Sequence[int]) -> float:
        expected = sum(sum(each[:count]) for each, count in zip(chances, counts, strict=True))
        return (1 + expected / 3) / costs.ratio(3, 3 + sum(counts))

    ways = [w for w in itertools.product(range(5), repeat=3) if not sum(w) or 3 + sum(w) in STEP_SIZES]
    counts = shared_out(chances, 3, 3, 12, costs)
    assert gain(counts) == pytest.approx(max(map(gain, ways)))


# ---- costs ------------------------------------------------------------------------------------------


def test_unmeasured_size_is_taken_for_as_cheap_as_the_next_smaller() -> None:
    costs = costs_of(t1=1.0, t8=3.0)
    assert [costs.ratio(1, n) for n in (1, 2, 7, 8, 16)] == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert StepCosts().ratio(1, 16) == 1.0


def test_longer_step_is_never_taken_for_shorter() -> None:
    assert costs_of(t1=1.0, t2=0.5).ratio(1, 2) == 1.0


def test_one_slow_step_does_not_count_for_much() -> None:
    costs = costs_of(t1=1.0, t8=2.0)
    costs.observe(1, 5.0)
    costs.observe(1, 1.0)
    assert costs.ratio(1, 8) == pytest.approx(2.0 / 1.28, rel=0.01)


def test_slow_size_is_tried_again_after_a_while_each_time_later() -> None:
    costs = costs_of(t1=1.0)
    tried_in = []
    for step in range(2000):
        if costs.ratio(1, 16) < 5.0:
            costs.observe(16, 10.0)
            tried_in.append(step)
        costs.observe(1, 1.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried_in)]
    assert pauses == sorted(pauses)
    assert 5 <= len(tried_in) <= 8


def test_size_that_was_slow_by_chance_is_used_again() -> None:
    costs = costs_of(t1=1.0, t16=50.0)
    for _ in range(StepCosts.FIRST_PATIENCE + 1):
        costs.observe(1, 1.0)
    assert costs.ratio(1, 16) == 1.0
    costs.observe(16, 2.0)
    assert costs.ratio(1, 16) == 2.0


def test_short_step_is_remembered_while_only_long_ones_run() -> None:
    costs = costs_of(t1=1.0)
    for _ in range(500):
        costs.observe(16, 4.0)
    assert costs.ratio(1, 16) == 4.0


def test_very_long_steps_are_left_alone() -> None:
    costs = costs_of(t1=1.0)
    costs.observe(300, 0.5)
    assert costs.ratio(1, 300) == math.inf
