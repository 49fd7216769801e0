"""The architecture of a GGUF file, through llama.cpp: nothing of the weights is read."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Final

import llama_cpp as C

from homeai.backends.llamacpp.binding import Model, listening
from homeai.backends.llamacpp.context import Context, ContextConfig
from homeai.backends.llamacpp.gguf import read_sizes
from homeai.evaluation.plan.architecture import Architecture, Experts, Window

_KV_OF_LAYERS: Final = re.compile(r"kv_cache\w*: size =.*?(\d+) layers")
_PROBE: Final = ContextConfig(
    num_kv_cells=4096,
    num_ids=1,
    num_outputs=1,
    max_num_batched_tokens=64,
    max_ubatch_tokens=64,
    num_threads=1,
    swa_full=False,
)


def of_file(path: Path) -> Architecture:
    """Raises `ModelLoadError`."""
    sizes = read_sizes(path)
    with listening(), closing(Model(path, no_alloc=True)) as model:
        outside = sizes.num_vocab * sizes.num_embd * (1 if sizes.is_tied else 2)
        layer_parameters = float(model.num_params - outside)
        arch = model.meta("general.architecture") or ""
        num_heads = int(C.llama_model_n_head(model.handle))
        head_size = int(model.meta(f"{arch}.attention.key_length") or sizes.num_embd // max(1, num_heads))
        return Architecture(
            name=path.name,
            sizes=sizes,
            num_parameters=float(model.num_params),
            layer_parameters=layer_parameters,
            attention_width=num_heads * head_size,
            window=_window(model),
            experts=_experts(model, arch, layer_parameters, len(sizes.layers), sizes.num_embd),
        )


def _window(model: Model) -> Window | None:
    """How many layers have it is not in every file: llama.cpp tells when it makes a cache for them."""
    if not model.n_swa:
        return None
    with listening() as lines:
        Context(model, _PROBE).close()
    num_layers = [int(match[1]) for line in lines if (match := _KV_OF_LAYERS.search(line))]
    return Window(model.n_swa, num_layers[-1]) if len(num_layers) > 1 else None


def _experts(model: Model, arch: str, layer_parameters: float, num_layers: int, num_embd: int) -> Experts | None:
    total, used, width = (
        int(model.meta(f"{arch}.{key}") or 0)
        for key in ("expert_count", "expert_used_count", "expert_feed_forward_length")
    )
    if not total or not used:
        return None
    width = width or int(model.meta(f"{arch}.feed_forward_length") or 0)
    return Experts(total, used, min(1.0, 3 * num_embd * width * total * num_layers / layer_parameters))
