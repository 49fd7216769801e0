"""Blocks: who counts on which, and what is found again."""

from __future__ import annotations

from homeai.backends.torch.blocks import ROOT_KEY, BlockPool, chain

KEY = chain(ROOT_KEY, b"sixteen tokens")
OTHER = chain(KEY, b"sixteen tokens")


def test_equal_tokens_behind_other_ones_have_another_key() -> None:
    assert chain(ROOT_KEY, b"sixteen tokens") == KEY
    assert OTHER != KEY


def test_freed_block_is_found_until_it_is_handed_out_again() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.fill(block, KEY)
    pool.release(block)
    assert pool.num_free == 2
    assert pool.find(KEY) == block
    pool.share(block)
    assert (pool.num_free, pool.num_refs(block)) == (1, 1)
    pool.release(block)
    assert {pool.take(), pool.take()} == {0, 1}
    assert pool.find(KEY) is None


def test_block_that_nobody_can_find_is_handed_out_first_and_the_longest_free_next() -> None:
    pool = BlockPool(3)
    first, second, third = pool.take(), pool.take(), pool.take()
    pool.fill(first, KEY)
    pool.fill(second, OTHER)
    for block in (first, second, third):
        pool.release(block)
    assert [pool.take(), pool.take(), pool.take()] == [third, first, second]


def test_of_two_with_the_same_content_the_first_is_found() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.fill(first, KEY)
    pool.fill(second, KEY)
    assert pool.find(KEY) == first
    assert pool.key(second) is None
    pool.release(second)
    assert pool.find(KEY) == first
