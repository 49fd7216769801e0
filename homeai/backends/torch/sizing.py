"""How many blocks the cache has, and how many tokens that is for the scheduler. Pure arithmetic.

The scheduler counts tokens; here a token takes part of a block. Every sequence may leave the rest of its last block
empty, and where it parts from another one in the middle of a block it has a copy of that block: at most WASTE tokens
per sequence, which the pool has on top of the cells that it promises.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from homeai.backends.torch.blocks import BLOCK_TOKENS, num_blocks_for
from homeai.backends.torch.tables import Group

WASTE: Final = 2 * (BLOCK_TOKENS - 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is wanted of the cache.

    num_cells: tokens, all sequences together; 0: as many as there is room for.
    num_seqs: sequences that may be held. max_num_batched_tokens: of one step. slack: tokens that may be taken back.
    """

    num_cells: int
    num_seqs: int
    max_num_batched_tokens: int
    slack: int


@dataclass(frozen=True, slots=True)
class GroupSize:
    """`bytes_per_block` over all layers of the group; `window` 0 or `keeps_all`: it holds what everybody holds."""

    bytes_per_block: int
    window: int
    keeps_all: bool


@dataclass(frozen=True, slots=True)
class CacheSize:
    """`num_cells` are promised to the scheduler; `groups` have the blocks for that."""

    num_cells: int
    groups: tuple[Group, ...]
    num_bytes: int


def cache_size(sizes: Sequence[GroupSize], demand: Demand) -> CacheSize:
    """Blocks for so many cells."""
    num_blocks = num_blocks_for(demand.num_cells + WASTE * demand.num_seqs)
    groups = tuple(
        Group(_num_blocks(size, num_blocks, demand), size.window, keeps_all=not _slides(size)) for size in sizes
    )
    return CacheSize(demand.num_cells, groups, _num_bytes(sizes, num_blocks, demand))


def largest_cells(sizes: Sequence[GroupSize], demand: Demand, num_bytes: int) -> int:
    """How many cells fit into so many bytes; 0 where none do. What is wanted at most, unless that is 0."""
    most = [num_bytes // size.bytes_per_block for size in sizes if not _slides(size)]
    most = most or [_window_blocks(size, demand) for size in sizes]  # more are of no use to layers with a window
    counts = range(max(0, min(most)) + 1)
    num_blocks = bisect_right(counts, num_bytes, key=lambda count: _num_bytes(sizes, count, demand)) - 1
    cells = max(0, num_blocks * BLOCK_TOKENS - WASTE * demand.num_seqs)
    return min(cells, demand.num_cells) if demand.num_cells else cells


def _slides(size: GroupSize) -> bool:
    return size.window > 0 and not size.keeps_all


def _num_bytes(sizes: Sequence[GroupSize], num_blocks: int, demand: Demand) -> int:
    return sum(size.bytes_per_block * _num_blocks(size, num_blocks, demand) for size in sizes)


def _num_blocks(size: GroupSize, num_blocks: int, demand: Demand) -> int:
    return min(num_blocks, _window_blocks(size, demand)) if _slides(size) else num_blocks


def _window_blocks(size: GroupSize, demand: Demand) -> int:
    """Every sequence's window with a part of a block before and behind it, and a step's tokens in front of them."""
    each = num_blocks_for(size.window + demand.slack) + 2
    return demand.num_seqs * each + num_blocks_for(demand.max_num_batched_tokens)
