"""The seam between models and paged attention: what `transformers` calls in every layer, and who answers.

A model is loaded with the attention implementation IMPLEMENTATION. Its forward pass gets the step's `Attention` as the
keyword `paged`, and each of its layers hands that its queries, keys and values.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from transformers import AttentionInterface

from homeai.backends.torch.kv import LayerShape
from homeai.backends.torch.layout import DeviceStep
from homeai.errors import ModelLoadError

IMPLEMENTATION: Final = "homeai_paged"


class Attention(Protocol):
    """Writes a layer's keys and values into the cache, and attends to what the cache holds."""

    is_padded: bool  # how it wants its batches, see `step_batch`

    def plan(self, step: DeviceStep) -> None:
        """Before the layers: what is the same for all of them."""
        ...

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """`query` [tokens, heads, head size], `key` and `value` [tokens, KV heads, head size] → like `query`.

        `sinks`: [heads], a logit that takes weight and gives nothing. All else is said by the layer's shape.
        """
        ...


class Probe:
    """In an `Attention`'s place: notes what a model's layers are like. `has_sinks`: some of them have. `dtype`: of keys
    and values, which quantised weights do not tell."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.has_sinks = False
        self.dtype = torch.get_default_dtype()


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    *,
    paged: Attention | Probe,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """`query` [1, heads, tokens, head size], `key` and `value` [1, KV heads, tokens, head size]."""
    layer: int = module.layer_idx
    q, k, v = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if not isinstance(paged, Probe):
        return paged.attend(layer, q, k, v, s_aux)[None], None
    if k.shape != v.shape:
        raise ModelLoadError(f"keys of shape {list(k.shape)} beside values of {list(v.shape)} are not known here")
    paged.has_sinks |= s_aux is not None
    paged.dtype = k.dtype
    scale = float(scaling) if scaling is not None else q.shape[-1] ** -0.5
    paged.shapes[layer] = LayerShape(q.shape[1], k.shape[1], k.shape[2], scale, sliding_window or 0, softcap or 0.0)
    return torch.zeros_like(q)[None], None


AttentionInterface.register(IMPLEMENTATION, _forward)
