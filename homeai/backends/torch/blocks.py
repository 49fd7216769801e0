"""Blocks of the KV cache of one group of layers: which are free, who counts on which, what lies in them.

A block holds BLOCK_TOKENS tokens and belongs to as many sequences as refer to it. Once full it has a *key*, the digest
of all tokens up to its end, so equal beginnings have equal keys. A block that nobody refers to any more is free, but
keeps its key and its content until it is handed out again, oldest first: till then `find` brings it back. After
PagedAttention (Kwon et al., SOSP '23) and vLLM's automatic prefix caching.

Pure: no torch, no tensors.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

BLOCK_TOKENS: Final = 16

Key = bytes
ROOT_KEY: Final = b""


def chain(parent: Key, token_bytes: bytes) -> Key:
    """The key of a block with these tokens behind the blocks that `parent` is the last key of."""
    return hashlib.blake2b(parent + token_bytes, digest_size=24).digest()


def num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


class BlockPool:
    """`num_blocks` blocks, numbered from 0."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(
            range(num_blocks)
        )  # in the order in which they are handed out
        self._keys: dict[int, Key] = {}
        self._by_key: dict[Key, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_refs(self, block: int) -> int:
        return self._num_refs[block]

    def key(self, block: int) -> Key | None:
        """None for a block that is not full, or whose content another one had first."""
        return self._keys.get(block)

    def take(self) -> int:
        """A free block, for one. What lay in it is forgotten."""
        assert self._free, f"none of {self.num_blocks} blocks is free"
        block, _ = self._free.popitem(last=False)
        key = self._keys.pop(block, None)
        if key is not None:
            del self._by_key[key]
        self._num_refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more counts on it; a free one is taken back as it is."""
        if not self._num_refs[block]:
            del self._free[block]
        self._num_refs[block] += 1

    def release(self, block: int) -> None:
        """One less counts on it."""
        assert self._num_refs[block], f"block {block} is free already"
        self._num_refs[block] -= 1
        if not self._num_refs[block]:
            self._free[block] = None
            if block not in self._keys:  # nobody can find it again
                self._free.move_to_end(block, last=False)

    def fill(self, block: int, key: Key) -> None:
        """It is full. Where another block holds the same already, that one stays the one to be found."""
        if key not in self._by_key:
            self._keys[block] = key
            self._by_key[key] = block

    def find(self, key: Key) -> int | None:
        """The block with these tokens, in use or free."""
        return self._by_key.get(key)
