"""What turns token ids into a vector: of the backend that the model is for, and only that one is imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from homeai.backends import torch as torch_backend
from homeai.backends.choice import backend_of
from homeai.embedding.messages import LoadEmbedder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Embedder(Protocol):
    """Of one model. `pooling`: mean, cls or last; auto is decided by then."""

    pooling: str
    num_dims: int

    def embed(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32 [num_dims], of length 1."""

    def close(self) -> None: ...


def load_embedder(load: LoadEmbedder) -> Embedder:
    """Raises `ModelLoadError`."""
    path = Path(load.model_path)
    if backend_of(path) == "torch":
        torch_backend.set_environment()
        from homeai.backends.torch.embedder import Embedder as OfFolder

        return OfFolder(path, pooling=load.pooling, max_tokens=load.max_tokens, num_threads=load.num_threads)
    from homeai.backends.llamacpp.embedder import Embedder as OfFile

    return OfFile(path, pooling=load.pooling, max_tokens=load.max_tokens, num_threads=load.num_threads)
