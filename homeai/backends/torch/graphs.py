"""CUDA graphs of the decode step: a forward pass of n rows recorded once and replayed, without Python in between.

A batch is filled up to the next recorded size with rows that read and write a block of nobody's (`PagedKV.scratch`).
Everything that differs from step to step lies in tensors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from homeai.backends.torch.attention import Attention
from homeai.backends.torch.batch import Ints, Piece, StepBatch, step_batch
from homeai.backends.torch.kv import PagedKV
from homeai.backends.torch.layout import DeviceGroup, DeviceStep
from homeai.backends.torch.model import Model
from homeai.backends.torch.tables import Group

NUM_WARM_UPS: Final = 3

Forward = Callable[[], torch.Tensor]
Record = Callable[[Forward], Forward]
"""Turns a forward pass into one that can be replayed; what it returns then lies where it lay the first time."""


def padded_sizes(max_num_rows: int) -> list[int]:
    """1, 2, 4, then every eighth: what is computed in vain is at most a quarter of a large batch."""
    return sorted({1, 2, 4, *range(8, max_num_rows, 8), max_num_rows} & set(range(1, max_num_rows + 1)))


def cuda_recorder() -> Record:
    """One pool of memory for all graphs: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(forward: Forward) -> Forward:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = forward()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    return record


class _Recorded:
    """A decode step of `num_rows` rows."""

    def __init__(self, num_rows: int, model: Model, attention: Attention, num_groups: int) -> None:
        self.attention = attention
        self._model = model
        self._host = torch.zeros((3 + num_groups) * num_rows, dtype=torch.int64)
        if model.device.type == "cuda":
            self._host = self._host.pin_memory()
        self._ints = self._host.to(model.device)
        token_ids, positions, outputs, *slots = self._ints.split(num_rows)
        self._parts = token_ids[None], positions[None], outputs
        self._slots = slots
        self._step: DeviceStep | None = None
        self.replay: Forward | None = None

    def plan(self, batch: StepBatch) -> None:
        """The tensors hold this batch now."""
        arrays: list[Ints] = [batch.token_ids, batch.positions, batch.outputs, *(g.slots for g in batch.groups)]
        np.concatenate(arrays, out=self._host.numpy())
        self._ints.copy_(self._host, non_blocking=True)
        groups = tuple(
            DeviceGroup(slots, self._moved(group.blocks), self._moved(group.begins), group.spans)
            for slots, group in zip(self._slots, batch.groups, strict=True)
        )
        self._step = DeviceStep(batch, *self._parts, groups)
        self.attention.plan(self._step)

    def forward(self) -> torch.Tensor:
        assert self._step is not None, "it is planned before"
        return self._model.forward(self._step, self.attention)

    def _moved(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._model.device, non_blocking=True)


class DecodeGraphs:
    """One recording for each size, made by `warm_up` or when it first comes."""

    def __init__(
        self,
        model: Model,
        kv: PagedKV,
        groups: Sequence[Group],
        attention_of: Callable[[int], Attention],
        record: Record,
        max_num_rows: int,
    ) -> None:
        self._model = model
        self._kv = kv
        self._groups = groups
        self._attention_of = attention_of
        self._record = record
        self._sizes = padded_sizes(max_num_rows)
        self._recorded: dict[int, _Recorded] = {}
        self._nobodys = Piece(0, np.zeros(1, np.int32), 1, [[block] for block in kv.scratch])

    def warm_up(self) -> None:
        """All sizes, the largest first: the smaller ones find their memory in its."""
        for size in reversed(self._sizes):
            self.forward([self._nobodys] * size)

    def forward(self, pieces: Sequence[Piece]) -> tuple[StepBatch, torch.Tensor] | None:
        """The batch and its logits, row i those of piece i; None for a batch that is no plain decode."""
        if any(len(piece.token_ids) != 1 or piece.num_outputs != 1 for piece in pieces):
            return None
        num_rows = next((size for size in self._sizes if size >= len(pieces)), None)
        if num_rows is None:
            return None
        recorded = self._recorded.get(num_rows)
        if recorded is None:
            attention = self._attention_of(num_rows)
            recorded = self._recorded[num_rows] = _Recorded(num_rows, self._model, attention, len(self._groups))
        filled = [*pieces, *[self._nobodys] * (num_rows - len(pieces))]
        batch = step_batch(filled, self._groups, is_padded=recorded.attention.is_padded)
        recorded.plan(batch)
        if recorded.replay is None:
            recorded.replay = self._record(recorded.forward)
        return batch._replace(first_output=batch.first_output[: len(pieces)]), recorded.replay()
