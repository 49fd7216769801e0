"""A model as `transformers` defines it, read from a folder of safetensors, with our attention in its layers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from homeai.backends.torch.attention import IMPLEMENTATION, Attention, Probe
from homeai.backends.torch.kv import LayerShape
from homeai.backends.torch.layout import DeviceStep
from homeai.backends.torch.packed import PackedLinear, can_pack, pack
from homeai.errors import ModelLoadError


class Model:
    """Weights on `device`; what a step's tokens need beside them is the attention's matter."""

    def __init__(self, model: PreTrainedModel, path: Path, device: torch.device) -> None:
        self._model = model
        self.path = path
        self.device = device
        self.config: PreTrainedConfig = model.config.get_text_config()
        self.dtype: torch.dtype = model.dtype  # of keys and values, from `layer_shapes` on; `has_sinks` too
        self.has_sinks = False
        self.num_tokens: int = model.get_output_embeddings().weight.shape[0]
        self.n_ctx_train = int(getattr(self.config, "max_position_embeddings", 0) or 0)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Model:
        """In the type that the file has. Raises `ModelLoadError`."""
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            _check(config.get_text_config())
            model = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype="auto",
                local_files_only=True,
                attn_implementation=IMPLEMENTATION,
                device_map=None if device.type == "cpu" else {"": device},  # straight to where it stays
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelLoadError(f"{path} cannot be loaded: {first_line(error)}") from error
        loaded = cls(model.eval().requires_grad_(False), path, device)
        if can_pack(loaded.dtype, device):
            pack(model)
        return loaded

    @property
    def size_bytes(self) -> int:
        """Tied weights count once, unless one of them is packed."""
        tensors = {t.data_ptr(): t for t in (*self._model.parameters(), *self._model.buffers())}
        num_packed = sum(layer.num_bytes for layer in self._model.modules() if isinstance(layer, PackedLinear))
        return int(num_packed + sum(tensor.nbytes for tensor in tensors.values()))

    def end_token_ids(self) -> frozenset[int]:
        """As the folder's generation_config.json says, else its config.json."""
        ids = self._model.generation_config.eos_token_id if self._model.generation_config is not None else None
        if ids is None:
            ids = self.config.eos_token_id
        return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)

    def layer_shapes(self) -> list[LayerShape]:
        """What each attention layer keeps, found out by asking: one token runs through all of them."""
        probe = Probe()
        token = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        self._run(token, token, probe)
        self.has_sinks, self.dtype = probe.has_sinks, probe.dtype
        layers = sorted(probe.shapes)
        if layers != list(range(len(layers))) or not layers:
            raise ModelLoadError(f"{self.path}: its layers {layers} do not all attend in a way that is known here")
        return [probe.shapes[layer] for layer in layers]

    def forward(self, step: DeviceStep, attention: Attention) -> torch.Tensor:
        """Logits of the tokens that the step wants them of, float32 [rows, vocabulary]. The attention is planned."""
        if not step.outputs.numel():
            self._run(step.token_ids, step.positions, attention)
            return torch.empty((0, self.num_tokens), device=self.device)
        out = self._model(
            input_ids=step.token_ids,
            position_ids=step.positions,
            use_cache=False,
            logits_to_keep=step.outputs,
            paged=attention,
        )
        logits: torch.Tensor = out.logits[0]
        return logits.float()

    def _run(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: Attention | Probe) -> None:
        """Without logits."""
        self._model.base_model(input_ids=token_ids, position_ids=positions, use_cache=False, paged=attention)


def _check(config: PreTrainedConfig) -> None:
    """Raises `ValueError` for what our cache cannot hold."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise ValueError(f"its layers of the kind {', '.join(sorted(kinds))} are not served by model.backend torch")
    if getattr(config, "use_bidirectional_attention", None):
        raise ValueError("its tokens look ahead: it is no model that writes text")


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
