"""Paged attention by FlashInfer's kernels, on an NVIDIA GPU: decode rows and prefill chunks in one varlen call.

Source: FlashInfer's documentation of `BatchPrefillWithPagedKVCacheWrapper` and `BatchDecodeWithPagedKVCacheWrapper`
(Ye et al., MLSys '25). A causal mask there is aligned to the ends of queries and cache, so blocks that a window has
left need not be listed; `window_left` does not count the token itself.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import torch

from homeai.backends.torch.batch import Ints, StepBatch
from homeai.backends.torch.blocks import BLOCK_TOKENS
from homeai.backends.torch.kv import LayerShape, PagedKV
from homeai.backends.torch.layout import DeviceStep

WORKSPACE_BYTES: Final = 128 * 2**20
HEAD_SIZES: Final = frozenset({64, 128, 256})


def can_serve(kv: PagedKV, *, has_sinks: bool) -> bool:
    """Installed, a GPU, and kernels for these layers."""
    is_there = kv.device.type == "cuda" and find_spec("flashinfer") is not None
    fits = all(group.shape.head_size in HEAD_SIZES for group in kv.groups) and kv.dtype.itemsize == 2
    return is_there and fits and not has_sinks


def workspace(device: torch.device) -> torch.Tensor:
    """For all wrappers that run one after the other."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


class FlashInferAttention:
    """`Attention` for any batch."""

    is_padded = False

    def __init__(self, kv: PagedKV, buffer: torch.Tensor) -> None:
        import flashinfer

        self._kv = kv
        self._slots: list[torch.Tensor] = []
        self._wrappers = [flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer, "NHD") for _ in kv.groups]

    def plan(self, step: DeviceStep) -> None:
        self._slots = [group.slots for group in step.groups]
        queries = _indptr(step.batch.counts)
        for wrapper, layout, on_device, group in zip(
            self._wrappers, step.batch.groups, step.groups, self._kv.groups, strict=True
        ):
            shape = group.shape
            wrapper.plan(
                queries,
                _indptr(layout.widths),
                on_device.blocks.int(),
                _last_page_lens(step.batch),
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_size,
                BLOCK_TOKENS,
                causal=True,
                **_common(shape, self._kv.dtype),
            )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        assert sinks is None, "`can_serve` says no to models with sinks"
        return _attend(self._kv, layer, query, key, value, self._slots, self._wrappers)


class FlashInferDecode:
    """`Attention` for a fixed number of decode rows, whose kernels can be recorded in a CUDA graph."""

    is_padded = False

    def __init__(self, kv: PagedKV, num_rows: int, max_num_blocks: int, buffer: torch.Tensor) -> None:
        """`max_num_blocks`: that all rows look at together."""
        import flashinfer

        def ints(count: int) -> torch.Tensor:
            return torch.empty(count, dtype=torch.int32, device=kv.device)

        self._kv = kv
        self._slots: list[torch.Tensor] = []
        self._wrappers = [
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                buffer,
                "NHD",
                use_cuda_graph=True,
                use_tensor_cores=group.shape.num_heads > group.shape.num_kv_heads,
                paged_kv_indptr_buffer=ints(num_rows + 1),
                paged_kv_indices_buffer=ints(max_num_blocks),
                paged_kv_last_page_len_buffer=ints(num_rows),
            )
            for group in kv.groups
        ]

    def plan(self, step: DeviceStep) -> None:
        self._slots = [group.slots for group in step.groups]
        for wrapper, layout, on_device, group in zip(
            self._wrappers, step.batch.groups, step.groups, self._kv.groups, strict=True
        ):
            shape = group.shape
            wrapper.plan(
                _indptr(layout.widths),
                on_device.blocks.int(),
                _last_page_lens(step.batch),
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_size,
                BLOCK_TOKENS,
                **_common(shape, self._kv.dtype),
            )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        assert sinks is None, "`can_serve` says no to models with sinks"
        return _attend(self._kv, layer, query, key, value, self._slots, self._wrappers)


def _attend(
    kv: PagedKV,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: list[torch.Tensor],
    wrappers: list[Any],
) -> torch.Tensor:
    group = kv.group_of[layer]
    kv.write(layer, slots[group], key, value)
    out: torch.Tensor = wrappers[group].run(query.contiguous(), (kv.keys[layer], kv.values[layer]))
    return out


def _common(shape: LayerShape, dtype: torch.dtype) -> dict[str, object]:
    return {
        "sm_scale": shape.scale,
        "window_left": shape.window - 1 if shape.window else -1,
        "logits_soft_cap": shape.softcap or None,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }


def _indptr(counts: Ints) -> torch.Tensor:
    """Where each one's part begins, and where the last one's ends; int32, on the host."""
    return torch.from_numpy(np.concatenate(([0], counts.cumsum())).astype(np.int32))


def _last_page_lens(batch: StepBatch) -> torch.Tensor:
    """Tokens in each piece's last block when its own are written; int32, on the host."""
    ends = batch.starts + batch.counts
    return torch.from_numpy(((ends - 1) % BLOCK_TOKENS + 1).astype(np.int32))
