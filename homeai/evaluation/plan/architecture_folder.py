"""The architecture of a folder of safetensors, from its `config.json` and the headers of its weights."""

from __future__ import annotations

from pathlib import Path

from homeai.backends.torch.fitting import read_sizes
from homeai.backends.torch.folder import ModelFolder
from homeai.evaluation.plan.architecture import Architecture, Experts, Window


def of_folder(path: Path) -> Architecture:
    """Raises `ModelLoadError`."""
    folder = ModelFolder(path)
    sizes = read_sizes(folder)
    outside = sizes.num_vocab * sizes.num_embd * (1 if sizes.is_tied else 2)
    num_parameters = sum(tensor.num_values for tensor in folder.tensors.values())
    layer_parameters = float(num_parameters - outside)
    num_heads = max(1, _number(folder, "num_attention_heads"))
    head_size = _number(folder, "head_dim") or sizes.num_embd // num_heads
    return Architecture(
        name=path.name,
        sizes=sizes,
        num_parameters=float(num_parameters),
        layer_parameters=layer_parameters,
        attention_width=num_heads * head_size,
        window=_window(folder),
        experts=_experts(folder, layer_parameters, len(sizes.layers), sizes.num_embd),
    )


def _window(folder: ModelFolder) -> Window | None:
    size, kinds = _number(folder, "sliding_window"), folder.text_config.get("layer_types")
    if not size or not isinstance(kinds, list):
        return None
    num_layers = kinds.count("sliding_attention")
    return Window(size, num_layers) if num_layers else None


def _experts(folder: ModelFolder, layer_parameters: float, num_layers: int, num_embd: int) -> Experts | None:
    total = _number(folder, "num_experts") or _number(folder, "num_local_experts")
    used = _number(folder, "num_experts_per_tok")
    if not total or not used:
        return None
    width = _number(folder, "moe_intermediate_size") or _number(folder, "intermediate_size")
    return Experts(total, used, min(1.0, 3 * num_embd * width * total * num_layers / layer_parameters))


def _number(folder: ModelFolder, key: str) -> int:
    value = folder.text_config.get(key)
    return value if isinstance(value, int) else 0
