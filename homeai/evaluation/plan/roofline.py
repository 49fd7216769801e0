"""How long a step takes where it was not measured: bytes over bandwidth, multiplications over FLOP/s.

A step reads the layers' weights once and the context of everybody in it, and multiplies every token with the weights
(Williams et al., 2009, *Roofline*); each row that gets logits goes through the output matrix, too. How much of its
data sheet a machine reaches is in `Rates`: assumed for a card nobody measured (`assumed`), solved for by
`calibration.py` where somebody did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.plan.architecture import Architecture
from homeai.evaluation.plan.gpus import GPU
from homeai.scheduling.plan import KVOp, KVOpKind

BANDWIDTH_REACHED: Final = 0.6  # of the data sheet's; from public llama.cpp benchmarks of these cards
COMPUTE_REACHED: Final = 0.6
PCIE_REACHED: Final = 0.7
STEP_OVERHEAD_S: Final = 0.0008  # launching kernels, our own work
ROW_OVERHEAD_S: Final = 0.0001  # drawing a token


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine reaches with one model. Seconds, bytes/s, FLOP/s.

    output_bandwidth: of the output matrix when several rows go through it at once. bus: to host memory and back.
    overlaps: memory is read while what was read before is multiplied, so that only the slower one counts.
    """

    bandwidth: float
    output_bandwidth: float
    flops: float
    bus: float
    step_s: float
    row_s: float
    overlaps: bool = True


def assumed(gpu: GPU) -> Rates:
    bandwidth = gpu.bandwidth * BANDWIDTH_REACHED
    return Rates(
        bandwidth=bandwidth,
        output_bandwidth=bandwidth,
        flops=gpu.fp16 * COMPUTE_REACHED,
        bus=gpu.pcie * PCIE_REACHED,
        step_s=STEP_OVERHEAD_S,
        row_s=ROW_OVERHEAD_S,
    )


class Work(NamedTuple):
    """What a step does, or a part of it.

    shared_output_bytes: of read_bytes, the output matrix where several rows go through it. hidden_flops: of flops,
    those of single rows: a matrix times one vector takes as long as reading the matrix, on any machine.
    """

    read_bytes: float
    shared_output_bytes: float
    flops: float
    hidden_flops: float

    def __add__(self, other: object) -> Work:
        assert isinstance(other, Work), "work is added to work"
        return Work(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def seconds(self, rates: Rates) -> float:
        read_s = (self.read_bytes - self.shared_output_bytes) / rates.bandwidth
        read_s += self.shared_output_bytes / rates.output_bandwidth
        if rates.overlaps:
            return max(read_s, self.flops / rates.flops)
        return read_s + (self.flops - self.hidden_flops) / rates.flops


def work_of(model: Architecture, shape: StepShape) -> tuple[Work, Work]:
    """Of a step: with the weights, and with keys and values.

    A step with prefill counts as ending a prompt: one row of logits for it. Keys and values are read once per request
    and step, and every token is multiplied with those it looks at.
    """
    num_requests = shape.num_decode_tokens + (1 if shape.num_prefill_tokens else 0)
    return _weights(model, shape.num_tokens, num_requests), _context(model, shape, num_requests)


def _weights(model: Architecture, num_tokens: int, num_rows: int) -> Work:
    layers, output = model.layer_flops * num_tokens, model.output_flops * num_rows
    return Work(
        read_bytes=model.layer_bytes_read(num_tokens) + model.output_bytes,
        shared_output_bytes=model.output_bytes if num_rows > 1 else 0.0,
        flops=layers + output,
        hidden_flops=(layers if num_tokens == 1 else 0.0) + (output if num_rows == 1 else 0.0),
    )


def _context(model: Architecture, shape: StepShape, num_requests: int) -> Work:
    context = shape.num_context_tokens / max(1, num_requests)
    seen = model.attended(context)
    middle = max(context / 2, context - shape.num_prefill_tokens / 2)  # what a chunk's tokens see, on average
    decodes = model.attention_flops(seen * shape.num_decode_tokens)
    prefill = model.attention_flops(model.attended(middle) * shape.num_prefill_tokens)
    return Work(model.kv_bytes_per_token * seen * num_requests, 0.0, decodes + prefill, decodes)


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A `StepCost`. `label`: what it describes, and that it is an estimate.

    max_kv_cells: tokens of context that fit beside the weights on the machine of that name.
    """

    model: Architecture
    rates: Rates
    label: str
    machine: str
    max_kv_cells: int

    @property
    def arrival_s(self) -> float:
        """The front end has the processor for itself."""
        return 0.0

    def step_s(self, shape: StepShape) -> float:
        weights, context = work_of(self.model, shape)
        return self.host_s(shape) + weights.seconds(self.rates) + context.seconds(self.rates)

    def host_s(self, shape: StepShape) -> float:
        return self.rates.step_s + self.rates.row_s * shape.num_decode_tokens

    def kv_op_s(self, op: KVOp) -> float:
        if op.kind not in (KVOpKind.SAVE, KVOpKind.RESTORE):
            return 0.0
        return op.length * self.model.kv_bytes_per_token / self.rates.bus
