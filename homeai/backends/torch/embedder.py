"""Token ids → one vector: a model without its output layer, on CPU, for one text at a time.

A text alone in its batch always gets the same vector, whatever else is asked for. The weights stay in the type and in
the pages of their files, which a daemon on the same folder shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModel
from transformers.utils import logging

from homeai.backends.shared.pooling import POOLED, Vector, unit
from homeai.backends.torch.folder import POOLINGS, ModelFolder
from homeai.backends.torch.model import first_line
from homeai.errors import ModelLoadError


class Embedder:
    """`pooling` auto: as a folder of sentence-transformers says it, else mean. Raises `ModelLoadError`."""

    def __init__(self, path: Path, *, pooling: str, max_tokens: int, num_threads: int) -> None:
        folder = ModelFolder(path)
        if folder.has_dense_layers:
            raise ModelLoadError(f"{path.name} has layers behind its pooling, which are not served; its GGUF file is")
        self.pooling = _own_pooling(folder) if pooling == "auto" else pooling
        self.max_tokens = max_tokens
        _ = folder.tensors  # raises for a file that is cut, of which transformers says so in an error of its own
        torch.set_num_threads(num_threads)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            model = AutoModel.from_pretrained(path, dtype="auto", local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelLoadError(f"{path} cannot be loaded: {first_line(error)}") from error
        self._model = model.eval().requires_grad_(False)
        self.num_dims = int(model.config.get_text_config().hidden_size)

    def embed(self, token_ids: Sequence[int]) -> Vector:
        """float32 [num_dims], of length 1 (0 where the model gives nothing but zeros)."""
        assert 0 < len(token_ids) <= self.max_tokens, f"{len(token_ids)} tokens, not 1 to {self.max_tokens}"
        with torch.inference_mode():
            rows = self._model(input_ids=torch.tensor([list(token_ids)])).last_hidden_state[0]
            return unit(POOLED[self.pooling](rows.float().numpy()))

    def close(self) -> None:
        del self._model


def _own_pooling(folder: ModelFolder) -> str:
    if not folder.poolings:
        return "mean"
    if len(folder.poolings) > 1 or folder.poolings[0] not in POOLINGS:
        raise ModelLoadError(
            f"{folder.path.name} has {' and '.join(folder.poolings)}, which is not served; embeddings.pooling can be "
            f"{', '.join(POOLED)}"
        )
    return POOLINGS[folder.poolings[0]][0]
