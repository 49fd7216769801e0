"""Paged attention by torch's own kernels, on any device: blocks are gathered, then attended to.

Decode rows go together, as the batch groups them: the query heads of one KV head are its queries, so nothing is
repeated. A longer piece goes alone. Where a sequence's blocks follow one another they are read where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from homeai.backends.torch.batch import Span
from homeai.backends.torch.blocks import BLOCK_TOKENS
from homeai.backends.torch.kv import LayerShape, PagedKV
from homeai.backends.torch.layout import DeviceGroup, DeviceStep


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A span, where its blocks are, and which of their tokens each query sees.

    mask: added to the logits, [rows, 1, queries, cells]; None: causal from the first cell on.
    """

    span: Span
    blocks: torch.Tensor | slice
    mask: torch.Tensor | None


class SdpaAttention:
    """`Attention`, portable."""

    is_padded = True

    def __init__(self, kv: PagedKV) -> None:
        self._kv = kv
        self._slots: list[torch.Tensor] = []
        self._parts: list[list[_Part]] = []

    def plan(self, step: DeviceStep) -> None:
        dtype = self._kv.keys[0].dtype
        self._slots = [group.slots for group in step.groups]
        self._parts = []
        for group, spec in zip(step.groups, self._kv.groups, strict=True):
            row = 0
            parts: list[_Part] = []
            for span in group.spans:
                begins = group.begins[row : row + span.num_rows]
                positions = step.positions[0, span.first : span.last]
                mask = _mask(span, begins, positions, spec.shape.window, dtype)
                parts.append(_Part(span, _blocks(group, span), mask))
                row += span.num_rows
            self._parts.append(parts)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        group = self._kv.group_of[layer]
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        shape = self._kv.groups[group].shape
        self._kv.write(layer, self._slots[group], key, value)
        outs = [
            _attend(part, query[part.span.first : part.span.last], keys, values, shape, sinks)
            for part in self._parts[group]
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def _blocks(group: DeviceGroup, span: Span) -> torch.Tensor | slice:
    blocks = group.blocks[span.offset : span.offset + span.num_rows * span.width]
    if span.num_rows == 1 and blocks.device.type == "cpu":
        first = int(blocks[0])
        if bool((blocks == torch.arange(first, first + span.width)).all()):
            return slice(first, first + span.width)
    return blocks


def _mask(
    span: Span, begins: torch.Tensor, positions: torch.Tensor, window: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """`begins`: [rows], the position of each row's first cell; `positions`: of the queries."""
    num_queries = span.last - span.first
    if not span.is_decode and span.start == 0 and not 0 < window < num_queries:
        return None
    cells = begins[:, None] + torch.arange(span.width * BLOCK_TOKENS, device=begins.device)  # [rows, cells]
    cells, queries = (cells[:, None], positions[:, None, None]) if span.is_decode else (cells, positions[:, None])
    seen = cells <= queries
    if window:
        seen &= cells > queries - window
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
    return mask[:, None] if span.is_decode else mask[None, None]


def _attend(
    part: _Part,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    shape: LayerShape,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[queries, heads, head size]"""
    span, num_kv_heads, num_queries = part.span, shape.num_kv_heads, len(query)
    size = span.num_rows, span.width * BLOCK_TOKENS, num_kv_heads, shape.head_size
    k = keys[part.blocks].view(size).transpose(1, 2)
    v = values[part.blocks].view(size).transpose(1, 2)
    mask = part.mask
    if span.is_decode:
        q = query.view(num_queries, num_kv_heads, shape.num_heads // num_kv_heads, shape.head_size)
    else:
        q = query.transpose(0, 1)[None]
        if mask is None:
            k, v = k[:, :, :num_queries], v[:, :, :num_queries]
    if shape.softcap or sinks is not None:
        out = _attend_exactly(q, k, v, mask, shape, sinks, is_decode=span.is_decode)
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=shape.scale, enable_gqa=not span.is_decode
        )
    return out.reshape(query.shape) if span.is_decode else out[0].transpose(0, 1)


def _attend_exactly(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    shape: LayerShape,
    sinks: torch.Tensor | None,
    *,
    is_decode: bool,
) -> torch.Tensor:
    """What the fused kernels have no words for: capped logits and sinks. Shapes as in `_attend`."""
    num_kv_heads = shape.num_kv_heads
    if not is_decode:
        k = k.repeat_interleave(shape.num_heads // num_kv_heads, 1)
        v = v.repeat_interleave(shape.num_heads // num_kv_heads, 1)
    logits = (q @ k.transpose(2, 3)).float() * shape.scale
    if shape.softcap:
        logits = shape.softcap * torch.tanh(logits / shape.softcap)
    if mask is not None:
        logits = logits + mask
    else:
        ahead = torch.ones(logits.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(ahead, float("-inf"))
    if sinks is not None:
        per_head = sinks.float().view(num_kv_heads, -1) if is_decode else sinks.float()[:, None]
        sink = per_head[None, ..., None].expand(*logits.shape[:3], 1)
        weights = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
    else:
        weights = logits.softmax(-1)
    return weights.to(v.dtype) @ v
