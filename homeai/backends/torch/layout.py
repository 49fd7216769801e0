"""A step's integers on the device: one copy, cut up into the tensors that the forward pass reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from homeai.backends.torch.batch import GroupLayout, Ints, Span, StepBatch


@dataclass(frozen=True, slots=True, eq=False)
class DeviceGroup:
    """`GroupLayout` on the device."""

    slots: torch.Tensor
    blocks: torch.Tensor
    begins: torch.Tensor
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """`token_ids`, `positions`: [1, tokens]; `outputs`: [rows], which tokens have logits. `batch`: the same on the
    host."""

    batch: StepBatch
    token_ids: torch.Tensor
    positions: torch.Tensor
    outputs: torch.Tensor
    groups: tuple[DeviceGroup, ...]


class Uploader:
    """Brings steps to `device`, through pinned memory where that is a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = torch.empty(0, dtype=torch.int64)

    def upload(self, batch: StepBatch) -> DeviceStep:
        """The tensors are those of this step until the next one."""
        arrays: list[Ints] = [batch.token_ids, batch.positions, batch.outputs]
        for group in batch.groups:
            arrays += [group.slots, group.blocks, group.begins]
        tensors = [torch.from_numpy(array) for array in arrays] if self._device.type == "cpu" else self._copied(arrays)
        token_ids, positions, outputs, *rest = tensors
        groups = tuple(_device_group(group, *rest[3 * i : 3 * i + 3]) for i, group in enumerate(batch.groups))
        return DeviceStep(batch, token_ids[None], positions[None], outputs, groups)

    def _copied(self, arrays: list[Ints]) -> list[torch.Tensor]:
        sizes = [array.size for array in arrays]
        total = sum(sizes)
        if total > self._pinned.numel():
            self._pinned = torch.empty(2 * total, dtype=torch.int64, pin_memory=True)
        host = self._pinned[:total]
        np.concatenate(arrays, out=host.numpy())
        return list(host.to(self._device, non_blocking=True).split(sizes))


def _device_group(group: GroupLayout, slots: torch.Tensor, blocks: torch.Tensor, begins: torch.Tensor) -> DeviceGroup:
    return DeviceGroup(slots, blocks, begins, group.spans)
