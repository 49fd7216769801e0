"""The tensors behind the block tables: keys and values of all layers of a group in one, copied block by block.

The layout of a group is [layers, 2 (keys, values), blocks, BLOCK_TOKENS, KV heads, head size]: a layer's keys are one
contiguous paged cache as FlashInfer's NHD layout wants it, and a block of all layers is copied by one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from homeai.backends.torch.blocks import BLOCK_TOKENS
from homeai.backends.torch.tables import Copy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer keeps of a token, and how it looks at what it keeps.

    window: tokens that it looks back at, its own among them; 0: at everything. scale: of the logits. softcap: logits
    become softcap · tanh(logit / softcap); 0: they stay.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    window: int = 0
    softcap: float = 0.0

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.num_kv_heads * self.head_size * int(dtype.itemsize)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one shape; `layers` are the model's own numbers."""

    shape: LayerShape
    layers: tuple[int, ...]

    def bytes_per_block(self, dtype: torch.dtype) -> int:
        return len(self.layers) * self.shape.bytes_per_token(dtype) * BLOCK_TOKENS


def grouped(shapes: Sequence[LayerShape]) -> list[LayerGroup]:
    """Equal layers together, in the order of their first one."""
    layers: dict[LayerShape, list[int]] = {}
    for layer, shape in enumerate(shapes):
        layers.setdefault(shape, []).append(layer)
    return [LayerGroup(shape, tuple(numbers)) for shape, numbers in layers.items()]


@dataclass(frozen=True, slots=True, eq=False)
class SavedBlocks:
    """Blocks in host memory, of one group: [layers, 2, blocks, BLOCK_TOKENS, KV heads, head size]."""

    data: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return int(self.data.nbytes)


class PagedKV:
    """All that the cache holds, on `device`. Which block is whose is the block tables' matter.

    Behind the blocks of each group lies one more that is nobody's (`scratch`), for rows that only fill a batch up.
    """

    def __init__(
        self, groups: Sequence[LayerGroup], num_blocks: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.groups = tuple(groups)
        self.dtype = dtype
        self.device = device
        self.scratch = tuple(num_blocks)
        self._data = [
            torch.zeros(
                (len(group.layers), 2, count + 1, BLOCK_TOKENS, group.shape.num_kv_heads, group.shape.head_size),
                dtype=dtype,
                device=device,
            )
            for group, count in zip(groups, num_blocks, strict=True)
        ]
        places = {
            layer: (number, data[row])
            for number, (group, data) in enumerate(zip(groups, self._data, strict=True))
            for row, layer in enumerate(group.layers)
        }
        self.group_of = [places[layer][0] for layer in range(len(places))]
        self.keys = [places[layer][1][0] for layer in range(len(places))]  # [blocks, BLOCK_TOKENS, KV heads, head size]
        self.values = [places[layer][1][1] for layer in range(len(places))]
        self._is_pinned = device.type == "cuda"

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for data in self._data)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """`slots`: [tokens], of all tokens of all blocks; `key`, `value`: [tokens, KV heads, head size]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, value)

    def copy(self, copies: Sequence[Copy]) -> None:
        """All at once: no block is both written and read."""
        for group, data in enumerate(self._data):
            pairs = [copy for copy in copies if copy.group == group]
            if pairs:
                sources = torch.tensor([pair.source for pair in pairs], device=data.device)
                targets = torch.tensor([pair.target for pair in pairs], device=data.device)
                data.index_copy_(2, targets, data.index_select(2, sources))

    def save(self, group: int, blocks: Sequence[int]) -> SavedBlocks:
        """Copied when this returns."""
        data = self._data[group]
        picked = data.index_select(2, torch.tensor(blocks, dtype=torch.int64, device=data.device))
        if not self._is_pinned:
            return SavedBlocks(picked)
        host = torch.empty(picked.shape, dtype=picked.dtype, pin_memory=True)
        host.copy_(picked, non_blocking=True)
        torch.cuda.synchronize(data.device)
        return SavedBlocks(host)

    def restore(self, group: int, saved: SavedBlocks, rows: Sequence[int], blocks: Sequence[int]) -> int:
        """Saved blocks number `rows` become `blocks` of the cache. Returns the bytes moved."""
        data = self._data[group]
        picked = saved.data if len(rows) == saved.data.shape[2] else saved.data.index_select(2, torch.tensor(rows))
        moved = picked.to(data.device, non_blocking=True)
        data.index_copy_(2, torch.tensor(blocks, device=data.device), moved)
        if self._is_pinned:  # the next step may free what is still read
            torch.cuda.synchronize(data.device)
        return int(picked.nbytes)
