"""Token ids → one vector: a context of its own, on CPU, for one text at a time.

A text alone in its batch always gets the same vector, whatever else is asked for. llama.cpp computes logits beside
embeddings, a row of them for every token: a causal model therefore reads its text in small chunks, and its vectors
are pooled here. A model that looks both ways needs the whole text at once (and has no logits); llama.cpp pools then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import llama_cpp as C
import numpy as np

from homeai.backends.llamacpp.binding import Model, loaded
from homeai.backends.llamacpp.context import Batch
from homeai.backends.shared.pooling import POOLED, Vector, unit
from homeai.errors import ModelLoadError

CHUNK: Final = 64  # no slower than larger ones, and the logits of 64 tokens are 64 MiB at 262,144 words
POOLINGS: Final = {
    "mean": C.LLAMA_POOLING_TYPE_MEAN,
    "cls": C.LLAMA_POOLING_TYPE_CLS,
    "last": C.LLAMA_POOLING_TYPE_LAST,
}
OWN_POOLINGS: Final = {str(number): name for name, number in POOLINGS.items()}  # as a GGUF says it
BOTH_WAYS: Final = frozenset({"gemma-embedding"})  # whose files do not say so


class Embedder:
    """`pooling` auto: as the model's file says, mean where it says nothing. Raises `ModelLoadError`."""

    def __init__(self, path: Path, *, pooling: str, max_tokens: int, num_threads: int) -> None:
        self._model = model = Model(path, repack=False)
        arch = model.meta("general.architecture") or ""
        self.pooling = _own_pooling(model, arch) if pooling == "auto" else pooling
        self.max_tokens = max_tokens
        self._is_causal = arch not in BOTH_WAYS and model.meta(f"{arch}.attention.causal") != "false"
        self._chunk = min(CHUNK, max_tokens) if self._is_causal else max_tokens
        params = C.llama_context_default_params()
        params.n_ctx = max_tokens
        params.n_batch = params.n_ubatch = self._chunk
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = num_threads
        params.embeddings = True
        params.pooling_type = C.LLAMA_POOLING_TYPE_NONE if self._is_causal else POOLINGS[self.pooling]
        params.swa_full = False
        params.no_perf = True
        self._context = loaded(
            f"cannot create a context of {max_tokens} tokens for embeddings",
            lambda: C.llama_init_from_model(model.handle, params),
            no_reason="out of memory?",
        )
        self._memory = C.llama_get_memory(self._context)  # null for a model without a cache
        self._batch = Batch(self._chunk)
        self.num_dims = int(C.llama_model_n_embd_out(model.handle))

    def embed(self, token_ids: Sequence[int]) -> Vector:
        """float32 [num_dims], of length 1 (0 where the model gives nothing but zeros)."""
        assert 0 < len(token_ids) <= self.max_tokens, f"{len(token_ids)} tokens, not 1 to {self.max_tokens}"
        if self._memory:
            C.llama_memory_clear(self._memory, True)
        vector = self._pooled_chunks(token_ids) if self._is_causal else self._pooled_whole(token_ids)
        return unit(vector)

    def _pooled_chunks(self, token_ids: Sequence[int]) -> Vector:
        rows = np.empty((len(token_ids), self.num_dims), np.float32)
        for start in range(0, len(token_ids), self._chunk):
            chunk = token_ids[start : start + self._chunk]
            self._decode(chunk, start)
            buffer = C.llama_get_embeddings(self._context)
            rows[start : start + len(chunk)] = np.ctypeslib.as_array(buffer, shape=(len(chunk), self.num_dims))
        return POOLED[self.pooling](rows)

    def _pooled_whole(self, token_ids: Sequence[int]) -> Vector:
        self._decode(token_ids, 0)
        pointer = C.llama_get_embeddings_seq(self._context, 0)
        assert pointer, "llama.cpp has no embedding for this text"
        vector: Vector = np.ctypeslib.as_array(pointer, shape=(self.num_dims,))
        return vector.copy()

    def _decode(self, token_ids: Sequence[int], start: int) -> None:
        self._batch.clear()
        self._batch.add([0], start, token_ids, num_outputs=len(token_ids))
        code = C.llama_decode(self._context, self._batch.struct)
        assert code == 0, f"llama_decode answers {code}"
        C.llama_synchronize(self._context)

    def close(self) -> None:
        if self._context:
            C.llama_free(self._context)
            self._context = None
            self._model.close()


def _own_pooling(model: Model, arch: str) -> str:
    stated = model.meta(f"{arch}.pooling_type")
    if stated == str(C.LLAMA_POOLING_TYPE_RANK):
        raise ModelLoadError(f"{model.path.name} ranks texts; it makes no embeddings")
    return OWN_POOLINGS.get(stated or "", "mean")
