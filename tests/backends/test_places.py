"""Who may take part in a batch: pure bookkeeping, checked against a plain model of places."""

from __future__ import annotations

import random

import pytest

from homeai.backends.llamacpp.places import Move, Places


def activate(places: Places, *seq_ids: int) -> list[Move]:
    return list(places.activate(seq_ids))


def test_first_sequences_can_take_part_at_once() -> None:
    places = Places(num_seqs=5, num_active=2)
    assert activate(places, 4, 1) == []
    assert (places.of(4), places.of(1)) == (0, 1)


def test_nobody_moves_for_those_that_take_part_already() -> None:
    places = Places(num_seqs=5, num_active=2)
    activate(places, 0, 1)
    assert activate(places, 1, 0) == activate(places, 0) == []


def test_the_one_that_took_part_longest_ago_makes_room() -> None:
    places = Places(num_seqs=5, num_active=2)
    activate(places, 0, 1)
    activate(places, 0)
    assert activate(places, 2) == [Move(1, source=1, target=2)]
    assert (places.of(0), places.of(1), places.of(2)) == (0, 2, 1)


def test_resting_sequence_changes_places_with_another() -> None:
    places = Places(num_seqs=3, num_active=2)
    activate(places, 0, 1)
    places.take(2)
    assert activate(places, 1, 2) == [Move(0, source=0, target=3), Move(2, source=2, target=0)]


def test_released_place_is_taken_first() -> None:
    places = Places(num_seqs=4, num_active=2)
    activate(places, 0, 1)
    places.take(2)
    places.release(0)
    assert places.of(0) is None
    assert activate(places, 2) == [Move(2, source=2, target=0)]


def test_second_place_for_one_sequence_is_a_bug() -> None:
    places = Places(num_seqs=4, num_active=2)
    places.take(3)
    with pytest.raises(AssertionError, match="sequence 3 has a place"):
        places.take(3)


@pytest.mark.parametrize(("num_seqs", "num_active"), [(1, 1), (3, 3), (4, 3), (12, 3)])
def test_no_two_sequences_share_a_place_and_moves_go_to_empty_ones(num_seqs: int, num_active: int) -> None:
    choose = random.Random(num_seqs)
    places = Places(num_seqs, num_active)
    holder: dict[int, int] = {}  # place → sequence
    for _ in range(2000):
        seq_ids = choose.sample(range(num_seqs), choose.randint(1, num_active))
        action = choose.randrange(3)
        if action == 0:
            places.release(seq_ids[0])
            holder = {place: seq_id for place, seq_id in holder.items() if seq_id != seq_ids[0]}
        elif action == 1 and places.of(seq_ids[0]) is None:
            holder[places.take(seq_ids[0])] = seq_ids[0]
        elif action == 2:
            for seq_id, source, target in places.activate(seq_ids):
                assert holder.pop(source) == seq_id
                assert target not in holder
                holder[target] = seq_id
            for seq_id in seq_ids:
                place = places.of(seq_id)
                assert place is not None
                assert place < num_active
                assert holder.setdefault(place, seq_id) == seq_id
        assert all(places.of(seq_id) == place for place, seq_id in holder.items())
