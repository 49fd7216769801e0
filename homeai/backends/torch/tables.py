"""Which blocks every sequence lies in: block tables, one per group of layers, and what they do to each other.

Layers that look at everything and layers with a sliding window are groups of their own. A windowed group gives the
blocks back that its window has left (`keeps_all` False); such a *hole* stays in the table. What is given back may
still be found by its key, so a sequence can often be shared or cut below its window all the same.

Sharing copies no tokens: all blocks are shared, the last one too where it is only part full, and whoever writes into
a shared block first gets a copy of its own (copy-on-write).

Pure: what is to be copied is returned, nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from homeai.backends.shared.tokens import TokenBuffer
from homeai.backends.torch.blocks import BLOCK_TOKENS, ROOT_KEY, BlockPool, Key, chain, num_blocks_for

HOLE: Final = -1


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose keys and values lie in the same blocks. `window`: tokens they look back at, their own among them;
    0: at everything. `keeps_all`: what lies behind the window stays.
    """

    num_blocks: int
    window: int = 0
    keeps_all: bool = True

    def first_seen(self, length: int) -> int:
        """The first block that the token at position `length` looks at."""
        return max(0, length + 1 - self.window) // BLOCK_TOKENS if self.window else 0


class Copy(NamedTuple):
    """All of block `source` of a group to its block `target`."""

    group: int
    source: int
    target: int


class _Table:
    """`blocks`: per group, block i holds tokens [16 i, 16 i + 16). `keys`: of the full blocks, as far as known."""

    __slots__ = ("blocks", "first_kept", "keys", "length")

    def __init__(self, num_groups: int) -> None:
        self.length = 0
        self.blocks: list[list[int]] = [[] for _ in range(num_groups)]
        self.first_kept = [0] * num_groups  # before it there are holes
        self.keys: list[Key] = []


class BlockTables:
    """The only one that takes and releases blocks. Sequences are 0 … num_seqs - 1.

    `slack`: tokens at a sequence's end that may be cut off again although a window has moved on by them.
    """

    def __init__(self, groups: Sequence[Group], num_seqs: int, slack: int = 0) -> None:
        self.groups = tuple(groups)
        self.pools = tuple(BlockPool(group.num_blocks) for group in groups)
        self._tables = [_Table(len(groups)) for _ in range(num_seqs)]
        self._slack = slack

    def length(self, seq_id: int) -> int:
        return self._tables[seq_id].length

    def blocks(self, seq_id: int, group: int) -> list[int]:
        """Not to be changed; HOLE where there is none any more."""
        return self._tables[seq_id].blocks[group]

    def keys(self, seq_id: int) -> list[Key]:
        """Of its full blocks."""
        return self._tables[seq_id].keys

    # ---- a sequence as a whole -------------------------------------------------------------------

    def drop(self, seq_id: int) -> None:
        """Last blocks first: of what is free the beginnings stay longest."""
        table = self._tables[seq_id]
        for group, pool in enumerate(self.pools):
            for block in reversed(table.blocks[group]):
                if block != HOLE:
                    pool.release(block)
        self._tables[seq_id] = _Table(len(self.groups))

    def truncate(self, seq_id: int, length: int) -> bool:
        """Keep the first `length` tokens. False: what they look at is gone; it is empty now."""
        table = self._tables[seq_id]
        assert 0 <= length <= table.length, f"sequence {seq_id} holds {table.length} tokens, not {length}"
        if length == table.length:
            return True
        if not self._is_whole_at(table, length):
            self.drop(seq_id)
            return False
        for group, pool in enumerate(self.pools):
            blocks = table.blocks[group]
            for index in range(
                min(self.groups[group].first_seen(length), table.first_kept[group]), num_blocks_for(length)
            ):
                if blocks[index] == HOLE and (block := self._block(table, group, index)) is not None:
                    pool.share(block)
                    blocks[index] = block
            for block in reversed(blocks[num_blocks_for(length) :]):
                if block != HOLE:
                    pool.release(block)
            del blocks[num_blocks_for(length) :]
            table.first_kept[group] = min(table.first_kept[group], self.groups[group].first_seen(length), len(blocks))
        del table.keys[length // BLOCK_TOKENS :]
        table.length = length
        return True

    def share(self, source: int, target: int, length: int) -> bool:
        """The empty `target` begins with the first `length` tokens of `source`. False: they are not whole any more."""
        origin, table = self._tables[source], self._tables[target]
        assert 0 < length <= origin.length, f"sequence {source} holds {origin.length} tokens, not {length}"
        assert table.length == 0, f"sequence {target} holds {table.length} tokens and should be empty"
        if not self._is_whole_at(origin, length):
            return False
        for group, pool in enumerate(self.pools):
            first = 0 if self.groups[group].keeps_all else self.groups[group].first_seen(length)
            table.first_kept[group] = first
            table.blocks[group] = [HOLE] * first
            for index in range(first, num_blocks_for(length)):
                block = self._block(origin, group, index)
                assert block is not None, f"block {index} of sequence {source} is gone"
                pool.share(block)
                table.blocks[group].append(block)
        table.keys = origin.keys[: length // BLOCK_TOKENS]
        table.length = length
        return True

    def _is_whole_at(self, table: _Table, length: int) -> bool:
        """All that the token at position `length` would look at is there."""
        return all(
            self._block(table, group, index) is not None
            for group, spec in enumerate(self.groups)
            for index in range(spec.first_seen(length), min(table.first_kept[group], num_blocks_for(length)))
        )

    def _block(self, table: _Table, group: int, index: int) -> int | None:
        """Its own, or one that holds the same."""
        block = table.blocks[group][index]
        if block != HOLE:
            return block
        return self.pools[group].find(table.keys[index])

    # ---- growing ---------------------------------------------------------------------------------

    def has_room(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Whether so many tokens can be appended to each (sequence, tokens), to all of them."""
        return all(self._num_missing(wanted, group) <= pool.num_free for group, pool in enumerate(self.pools))

    def _num_missing(self, wanted: Sequence[tuple[int, int]], group: int) -> int:
        """Blocks that they begin, and copies of shared ones: the last who writes into one keeps it."""
        pool = self.pools[group]
        num_missing = 0
        writers: dict[int, int] = {}
        for seq_id, count in wanted:
            table = self._tables[seq_id]
            num_missing += num_blocks_for(table.length + count) - num_blocks_for(table.length)
            if table.length % BLOCK_TOKENS:
                block = table.blocks[group][-1]
                writers[block] = writers.get(block, 0) + 1
        for block, count in writers.items():
            is_kept = pool.num_refs(block) == count and pool.key(block) is None
            num_missing += count - is_kept
        return num_missing

    def extend(self, seq_id: int, count: int) -> list[Copy]:
        """Blocks for `count` more tokens, for which there is room. What it returns is to be copied first."""
        table = self._tables[seq_id]
        copies: list[Copy] = []
        for group, pool in enumerate(self.pools):
            blocks = table.blocks[group]
            if table.length % BLOCK_TOKENS and (pool.num_refs(blocks[-1]) > 1 or pool.key(blocks[-1]) is not None):
                shared, blocks[-1] = blocks[-1], pool.take()
                pool.release(shared)
                copies.append(Copy(group, shared, blocks[-1]))
            while len(blocks) < num_blocks_for(table.length + count):
                blocks.append(pool.take())
        table.length += count
        return copies

    def settle(self, seq_id: int, tokens: TokenBuffer) -> None:
        """All that it holds is computed: full blocks can be found from now on, and those behind a window go."""
        table = self._tables[seq_id]
        num_full = table.length // BLOCK_TOKENS
        if num_full == len(table.keys):
            return
        for index in range(len(table.keys), num_full):
            data = tokens.slice(index * BLOCK_TOKENS, BLOCK_TOKENS).tobytes()
            table.keys.append(chain(table.keys[-1] if table.keys else ROOT_KEY, data))
            for group, pool in enumerate(self.pools):
                if index >= table.first_kept[group]:
                    pool.fill(table.blocks[group][index], table.keys[index])
        self._let_go(table)

    def _let_go(self, table: _Table) -> None:
        """What a window has left."""
        for group, (spec, pool) in enumerate(zip(self.groups, self.pools, strict=True)):
            if spec.keeps_all:
                continue
            first = min(spec.first_seen(max(0, table.length - self._slack)), len(table.keys))
            blocks = table.blocks[group]
            for index in range(table.first_kept[group], first):
                pool.release(blocks[index])
                blocks[index] = HOLE
            table.first_kept[group] = max(table.first_kept[group], first)

    # ---- out to host memory and back -------------------------------------------------------------

    def place(
        self, seq_id: int, length: int, keys: Sequence[Key], present: Sequence[Sequence[bool]]
    ) -> list[Copy] | None:
        """Tables for a saved sequence; `present`: per group and block, whether it was saved. None: there is no room.

        What lies on the device already is shared. `Copy.source` of the others is the index of the block.
        """
        table = self._tables[seq_id]
        assert table.length == 0, f"sequence {seq_id} holds {table.length} tokens and should be empty"
        found = [
            [pool.find(keys[i]) if there and i < len(keys) else None for i, there in enumerate(group)]
            for pool, group in zip(self.pools, present, strict=True)
        ]
        for pool, group, blocks in zip(self.pools, present, found, strict=True):
            num_revived = sum(block is not None and not pool.num_refs(block) for block in blocks)
            if sum(group) - sum(block is not None for block in blocks) + num_revived > pool.num_free:
                return None
        copies: list[Copy] = []
        for number, (pool, group, blocks) in enumerate(zip(self.pools, present, found, strict=True)):
            for block in blocks:  # before any is taken for another's content
                if block is not None:
                    pool.share(block)
            for index, there in enumerate(group):
                block = blocks[index]
                if block is None and there:
                    block = pool.take()
                    copies.append(Copy(number, index, block))
                    if index < len(keys):
                        pool.fill(block, keys[index])
                table.blocks[number].append(HOLE if block is None else block)
            table.first_kept[number] = next((i for i, there in enumerate(group) if there), len(group))
        table.keys = list(keys)
        table.length = length
        return copies

    def check(self) -> None:
        """Blocks are conserved: what tables refer to is what the pools count. For tests."""
        for group, pool in enumerate(self.pools):
            refs = [0] * pool.num_blocks
            for table in self._tables:
                assert len(table.blocks[group]) == num_blocks_for(table.length)
                for index, block in enumerate(table.blocks[group]):
                    assert (block == HOLE) == (index < table.first_kept[group])
                    if block != HOLE:
                        refs[block] += 1
            assert refs == [pool.num_refs(block) for block in range(pool.num_blocks)]
            assert pool.num_free == refs.count(0)
