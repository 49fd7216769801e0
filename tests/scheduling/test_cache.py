"""What the scheduler keeps, shares, evicts, saves and brings back."""

from __future__ import annotations

import itertools

import pytest

from homeai.scheduling.cache import MIN_KEPT_TOKENS, CacheConfig, KVCache
from homeai.scheduling.plan import KVOp, KVOpKind
from homeai.scheduling.tree import Sequence

NUMBERS = itertools.count(1000)


def create_cache(*, is_worth_saving: bool = True, **config: object) -> KVCache:
    defaults: dict[str, object] = {"num_cells": 1000, "num_seqs": 6, "kv_bytes_per_token": 1}
    return KVCache(CacheConfig(**defaults | config), 2, lambda num_tokens, num_computed: is_worth_saving)  # type: ignore[arg-type]


def text(num_tokens: int, head: list[int] | None = None) -> list[int]:
    """Begins with `head` and goes on like no other."""
    head = head or []
    return [*head, *(next(NUMBERS) for _ in range(num_tokens - len(head)))]


def compute(cache: KVCache, tokens: list[int], now: float = 0.0, domain: str = "") -> Sequence:
    seq = cache.open(domain, tokens, now)
    assert seq is not None
    missing = tokens[seq.length :]
    cache.reserve(len(missing))
    cache.commit(seq, len(missing), missing)
    return seq


def keep(cache: KVCache, tokens: list[int], now: float = 0.0, **how: object) -> Sequence:
    seq = compute(cache, tokens, now)
    cache.close(seq, now, **how)  # type: ignore[arg-type]
    return seq


def ops(cache: KVCache) -> list[KVOpKind]:
    return [op.kind for op in cache.take_pending_ops()]


def test_next_turn_of_a_conversation_goes_on_in_the_same_sequence() -> None:
    cache = create_cache()
    first = keep(cache, turn := text(100))
    again = cache.open("", [*turn, *text(20)], 1.0)
    assert (again, again and again.length, ops(cache)) == (first, 100, [])


def test_common_beginning_is_shared_and_costs_no_cells() -> None:
    cache = create_cache()
    head = text(60)
    first = compute(cache, text(100, head))
    second = cache.open("", text(90, head), 1.0)
    assert second is not None
    assert second.length == 60
    assert cache.take_pending_ops() == [KVOp(KVOpKind.SHARE, second.seq_id, other=first.seq_id, length=60)]
    assert cache.num_used == 100


def test_whole_prompt_is_never_taken_from_the_cache() -> None:
    cache = create_cache()
    keep(cache, prompt := text(100))
    seq = cache.open("", prompt, 1.0)
    assert seq is not None
    assert seq.length == 99, "the last token has to run for its logits"


def test_short_beginnings_are_not_shared() -> None:
    cache = create_cache()
    compute(cache, text(100, head := text(8)))
    seq = cache.open("", text(90, head), 1.0)
    assert seq is not None
    assert seq.length == 0


def test_other_domains_are_not_seen() -> None:
    cache = create_cache()
    compute(cache, prompt := text(100), domain="source tv")
    assert cache.find("", prompt).length == 0


def test_without_sharing_only_whole_sequences_are_taken_up_again() -> None:
    cache = create_cache(can_share=False)
    first = keep(cache, turn := text(100))
    other = cache.open("", text(90, turn[:50]), 1.0)
    assert other is not None
    assert other.length == 0
    assert cache.open("", [*turn, 1], 2.0) is first


# ---- eviction ---------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = create_cache()
    texts = [text(300) for _ in range(3)]
    for at, tokens in enumerate(texts):
        keep(cache, tokens, now=float(at))
    compute(cache, text(200), 5.0)
    assert [cache.find("", tokens).length > 0 for tokens in texts] == [False, True, True]


def test_what_runs_is_never_evicted() -> None:
    cache = create_cache()
    compute(cache, running := text(600))
    keep(cache, text(300))
    compute(cache, text(400))
    assert cache.find("", [*running, 1]).length == 600


def test_learned_beginning_outlives_its_tails() -> None:
    """A beginning that request after request goes on from stays when everything else had to go."""
    cache = create_cache(num_cells=600, num_seqs=4)
    head = text(200)
    for at in range(4):
        keep(cache, text(230, head), now=float(at))
    for at in range(6):
        keep(cache, text(150), now=10.0 + at)
    assert cache.find("", [*head, 1]).length == 200


def test_what_is_new_stays_beside_much_that_was_learned() -> None:
    """A conversation has its next turn's beginning in the cache, however many others were found again and again."""
    cache = create_cache(max_kept_cells=400, num_seqs=12)
    for at in range(0, 50, 10):
        head = text(80)
        for now in range(at, at + 4):
            keep(cache, text(90, head), now=float(now))
        keep(cache, text(300), now=at + 5.0)  # their tails go
    keep(cache, new := text(80), now=50.0)
    assert cache.find("", [*new, 1]).length == 80
    keep(cache, text(80), now=51.0)
    assert cache.find("", [*new, 1]).length == 80


def test_kept_cells_are_bounded() -> None:
    cache = create_cache(max_kept_cells=250)
    for at in range(5):
        keep(cache, text(100), now=float(at))
        assert cache.num_kept <= 250


def test_parked_sequence_is_kept_longest_and_beyond_the_bound() -> None:
    cache = create_cache(max_kept_cells=100)
    keep(cache, parked := text(300), 0.0, parked_by="r1")
    for at in range(1, 5):
        keep(cache, text(90), now=float(at))
    assert cache.find("", [*parked, 1]).length == 300
    compute(cache, text(800), 9.0)
    assert cache.find("", [*parked, 1]).length == 0


def test_id_is_found_by_evicting() -> None:
    cache = create_cache(num_seqs=3)
    for at in range(3):
        keep(cache, text(50), now=float(at))
    assert cache.open("", text(50), 5.0) is not None


# ---- pins -------------------------------------------------------------------------------------------


def test_pinned_beginning_is_shared_and_stays() -> None:
    cache = create_cache()
    seq = compute(cache, pinned := text(200))
    assert cache.pin(seq)
    cache.close(seq, 0.0)
    for at in range(1, 8):
        keep(cache, text(390), now=float(at))
    other = cache.open("", [*pinned, *text(10)], 20.0)
    assert other is not None
    assert other is not seq
    assert other.length == 200


def test_pins_leave_enough_sequences_to_run() -> None:
    cache = create_cache()  # 6, of which 2 may run
    pinned = []
    for _ in range(6):
        seq = compute(cache, text(40))
        pinned.append(cache.pin(seq))
        cache.close(seq, 0.0)
    assert pinned == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("num_tokens", "can_share"), [(MIN_KEPT_TOKENS - 1, True), (200, False)])
def test_what_nobody_could_begin_with_is_not_pinned(num_tokens: int, can_share: bool) -> None:
    cache = create_cache(can_share=can_share)
    assert not cache.pin(compute(cache, text(num_tokens)))
    assert cache.num_pinned_seqs == 0


def test_pins_give_way_when_nothing_else_helps() -> None:
    cache = create_cache()
    seq = compute(cache, text(200))
    cache.pin(seq)
    cache.close(seq, 0.0)
    assert cache.num_available == 800
    assert cache.unpin()
    assert cache.num_available == 1000
    assert not cache.unpin()


def test_pins_give_way_together() -> None:
    """Some left over would be computed and pinned a second time."""
    cache = create_cache()
    for _ in range(2):
        seq = compute(cache, text(200))
        cache.pin(seq)
        cache.close(seq, 0.0)
    assert cache.unpin()
    assert (cache.num_pinned_seqs, cache.num_available) == (0, 1000)


# ---- host memory ------------------------------------------------------------------------------------


def test_parked_sequence_that_gives_way_is_saved_and_comes_back() -> None:
    cache = create_cache(host_bytes=500)
    keep(cache, parked := text(300), parked_by="r1")
    other = compute(cache, text(800), 1.0)
    assert ops(cache) == [KVOpKind.SAVE, KVOpKind.DROP]
    cache.close(other, 1.0, keep=False)
    back = cache.open("", [*parked, 1], 2.0)
    assert back is not None
    assert back.length == 300
    assert ops(cache) == [KVOpKind.DROP, KVOpKind.RESTORE, KVOpKind.FORGET]
    assert len(cache.host) == 0


def test_what_nobody_came_back_to_is_not_saved() -> None:
    cache = create_cache(host_bytes=500)
    keep(cache, text(300))
    compute(cache, text(800), 1.0)
    assert KVOpKind.SAVE not in ops(cache)


@pytest.mark.parametrize("changes", [{"host_bytes": 0}, {"is_worth_saving": False}, {"can_save": False}])
def test_saving_is_off_where_it_does_not_pay(changes: dict[str, object]) -> None:
    cache = create_cache(**{"host_bytes": 500} | changes)  # type: ignore[arg-type]
    keep(cache, text(300), parked_by="r1")
    compute(cache, text(800), 1.0)
    assert KVOpKind.SAVE not in ops(cache)


def test_host_memory_is_bounded_and_the_oldest_goes() -> None:
    cache = create_cache(host_bytes=500)
    for at in range(3):
        keep(cache, text(240), float(at), parked_by=f"r{at}")
        cache.close(compute(cache, text(900), at + 0.5), at + 0.5, keep=False)
        assert cache.host.num_bytes <= 500
    assert len(cache.host) == 2


def test_parked_request_that_ended_leaves_nothing_in_host_memory() -> None:
    cache = create_cache(host_bytes=500)
    keep(cache, text(300), parked_by="r1")
    compute(cache, text(800), 1.0)
    ops(cache)
    cache.forget_parked("r1")
    assert ops(cache) == [KVOpKind.FORGET]
    assert cache.host.num_bytes == 0


@pytest.mark.parametrize(("is_partitioned", "num_shared"), [(False, 200), (True, 0)])
def test_restored_sequence_is_shared_below_its_end_only_where_all_of_it_was_saved(
    is_partitioned: bool, num_shared: int
) -> None:
    """With partitions a sliding-window model saves its last window only."""
    cache = create_cache(host_bytes=500, num_seqs=2, is_partitioned=is_partitioned)
    keep(cache, parked := text(300), parked_by="r1")
    for seq in [compute(cache, text(100)), compute(cache, text(100))]:
        cache.close(seq, 1.0, keep=False)
    compute(cache, [*parked, 1], 2.0)
    other = cache.open("", text(290, parked[:200]), 3.0)
    assert other is not None
    assert other.length == num_shared


# ---- partitions -------------------------------------------------------------------------------------


def test_with_partitions_the_best_match_is_cut_rather_than_copied() -> None:
    cache = create_cache(is_partitioned=True, num_seqs=2)
    first = keep(cache, head := text(100))
    second = keep(cache, text(100))
    assert cache.open("", text(150, head[:60]), 1.0) is first
    assert ops(cache) == [KVOpKind.TRUNCATE]
    assert second.length == 100


def test_with_partitions_a_running_beginning_is_copied() -> None:
    cache = create_cache(is_partitioned=True, num_seqs=2)
    compute(cache, head := text(100))
    seq = cache.open("", text(150, head[:60]), 1.0)
    assert seq is not None
    assert (seq.length, ops(cache), cache.num_used) == (60, [KVOpKind.SHARE], 160)


# ---- ops that failed --------------------------------------------------------------------------------


def test_lost_sequence_is_empty_and_its_cells_are_free() -> None:
    cache = create_cache()
    seq = compute(cache, text(100))
    assert cache.lose(seq.seq_id) is seq
    assert (seq.length, cache.num_used) == (0, 0)


def test_lost_kept_sequence_is_gone() -> None:
    cache = create_cache()
    seq = keep(cache, tokens := text(100))
    cache.lose(seq.seq_id)
    assert cache.find("", tokens).length == 0
    assert ops(cache) == [KVOpKind.DROP]


# ---- books that stay small ---------------------------------------------------------------------------


def test_request_that_opted_out_and_never_ran_leaves_nothing() -> None:
    cache = create_cache()
    for number in range(50):
        cache.find(f"request {number}", text(40))
    assert len(cache._roots) == 0


def test_parked_request_that_opted_out_leaves_no_cells() -> None:
    cache = create_cache()
    seq = compute(cache, text(100), domain="request 1")
    cache.close(seq, 0.0, parked_by="1")
    cache.forget_parked("1", keep=False)
    assert (cache.num_used, len(cache._roots)) == (0, 0)


def test_conversation_that_went_on_is_not_hot_to_its_end() -> None:
    """Its beginning was found, turn after turn; what was said last was not."""
    cache = create_cache()
    tokens = text(60)
    for at in range(4):
        keep(cache, tokens, float(at))
        tokens = [*tokens, *text(40)]
    seq = keep(cache, tokens, 5.0)
    assert seq.node.hits == 0


def test_what_was_hot_long_ago_gives_way_to_what_is_new() -> None:
    cache = create_cache(num_cells=600)
    head = text(200)
    for at in range(4):
        keep(cache, text(230, head), float(at))
    for at in range(400):
        keep(cache, text(390), 10.0 + at)
    assert cache.find("", [*head, 1]).length == 0


def test_restoring_pays_only_for_what_is_not_there() -> None:
    """All but 20 tokens of what was saved is in the cache already: they are computed."""
    cache = KVCache(
        CacheConfig(num_cells=1000, num_seqs=6, kv_bytes_per_token=1, host_bytes=500),
        2,
        lambda num_tokens, num_computed: num_tokens < 10 * num_computed,
    )
    head = text(300)
    keep(cache, saved := text(320, head), parked_by="r1")
    cache.close(compute(cache, text(900), 1.0), 1.0, keep=False)
    compute(cache, [*head, 1], 2.0)
    cache.take_pending_ops()
    seq = cache.open("", [*saved, 1], 3.0)
    assert seq is not None
    assert (seq.length, ops(cache)) == (300, [KVOpKind.SHARE])


@pytest.mark.parametrize(
    ("changes", "num_restored"), [({}, 290), ({"is_partitioned": True, "num_seqs": 2}, 0), ({"can_share": False}, 0)]
)
def test_what_parts_before_the_end_of_a_saved_beginning_goes_on_from_there(
    changes: dict[str, object], num_restored: int
) -> None:
    """As where the last word of a common beginning makes another token with what follows it."""
    cache = create_cache(**{"host_bytes": 500} | changes)
    head = text(300)
    for at in range(3):
        keep(cache, text(320, head), float(at))
    for seq in [compute(cache, text(480), 4.0) for _ in range(2)]:
        cache.close(seq, 4.0, keep=False)
    ops(cache)
    back = cache.open("", text(350, head[:290]), 5.0)
    assert back is not None
    assert back.length == num_restored
    if num_restored:
        assert ops(cache)[-2:] == [KVOpKind.RESTORE, KVOpKind.TRUNCATE]
    assert cache.num_used == num_restored


def test_who_goes_on_from_a_part_of_what_was_saved_leaves_all_of_it_to_others() -> None:
    cache = create_cache(host_bytes=500)
    head = text(300)
    for at in range(3):
        keep(cache, text(320, head), float(at))
    for seq in [compute(cache, text(480), 4.0) for _ in range(2)]:
        cache.close(seq, 4.0, keep=False)
    for length in (100, 300):
        seq = cache.open("", text(350, head[:length]), 5.0)
        assert seq is not None
        assert seq.length == length
        cache.close(seq, 5.0, keep=False)
    assert len(cache.host) == 0


def test_nothing_is_restored_into_promised_cells() -> None:
    cache = create_cache(host_bytes=500)
    keep(cache, saved := text(300), parked_by="r1")
    cache.close(compute(cache, text(800), 1.0), 1.0, keep=False)
    seq = cache.open("", [*saved, 1], 2.0, max_cells=250)
    assert seq is not None
    assert seq.length == 0
