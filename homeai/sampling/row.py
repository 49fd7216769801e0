"""One row of logits, and the few tokens of it that can matter, found without sorting the vocabulary.

The row is dealt into NUM_BLOCKS blocks (token id modulo NUM_BLOCKS, so that one vectorised pass takes every
block's maximum). Logits that reach a threshold lie only in blocks whose maximum reaches it, and the k-th
largest maximum is at most the k-th largest logit: k blocks have an element that reaches it. So the top k lie
in about k blocks, 2 % of the row, and some 50 elements are sorted in the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.intp]

NUM_BLOCKS = 2048  # fastest of 512..4096 at 262,144 tokens: more of them sort longer, fewer gather more


class Candidates(NamedTuple):
    """Tokens and their logits, both [n]; highest logit first, equal ones by lowest id."""

    ids: TokenIds
    logits: npt.NDArray[np.float64]

    def first(self, n: int) -> Candidates:
        return Candidates(self.ids[:n], self.logits[:n])


class Row:
    """Logits [vocabulary], C-contiguous, with their block maxima and maximum; only `replace` writes to them.

    `peak` is NaN when any logit is.
    """

    __slots__ = ("_body", "_maxima", "_tail", "logits", "peak")

    def __init__(self, logits: Logits) -> None:
        num_tail = logits.size % NUM_BLOCKS
        self.logits = logits
        self._body = logits[: logits.size - num_tail].reshape(-1, NUM_BLOCKS)
        self._tail = logits[logits.size - num_tail :]
        self._maxima = self._body.max(axis=0, initial=-np.inf)
        self._include_tail()

    def _include_tail(self) -> None:
        num_tail = self._tail.size
        np.maximum(self._maxima[:num_tail], self._tail, out=self._maxima[:num_tail])
        self.peak = float(self._maxima.max())

    def replace(self, ids: TokenIds, values: npt.ArrayLike) -> Logits:
        """Write the logits of some tokens, each once; returns what they were. Costs their blocks, not the row."""
        before = self.logits[ids]
        self.logits[ids] = values
        blocks = np.unique(ids % NUM_BLOCKS)
        self._maxima[blocks] = self._body[:, blocks].max(axis=0, initial=-np.inf)
        self._include_tail()
        return before

    def argmax(self) -> int:
        """Lowest id of the highest logit."""
        return int(self._ids_reaching(self.peak)[0])

    def top_k(self, k: int) -> Candidates:
        """The first min(k, vocabulary) tokens, exactly; k ≥ 1. Above NUM_BLOCKS the whole row is partitioned."""
        pool = self._maxima if k <= NUM_BLOCKS else self.logits
        kth = max(pool.size - k, 0)
        return self.at_least(float(np.partition(pool, kth)[kth])).first(k)

    def at_least(self, threshold: float) -> Candidates:
        """All tokens whose logit reaches the threshold."""
        return self._ranked(self._ids_reaching(threshold))

    def among(self, ids: TokenIds, k: int = 0) -> Candidates:
        """The first k of these tokens (0: all), whose ids ascend."""
        if 0 < k < ids.size:
            logits = self.logits[ids]
            ids = ids[logits >= np.partition(logits, ids.size - k)[ids.size - k]]
        candidates = self._ranked(ids)
        return candidates.first(k) if k else candidates

    def _ranked(self, ids: TokenIds) -> Candidates:
        logits = self.logits[ids].astype(np.float64)
        order = np.argsort(-logits, kind="stable")  # ids ascend: equal logits stay in their order
        return Candidates(ids[order], logits[order])

    def _ids_reaching(self, threshold: float) -> TokenIds:
        """Ascending ids."""
        blocks = np.flatnonzero(self._maxima >= threshold)
        hits = np.flatnonzero(self._body.take(blocks, axis=1) >= threshold)
        ids = hits // blocks.size * NUM_BLOCKS + blocks[hits % blocks.size]
        if not self._tail.size:
            return ids
        return np.concatenate((ids, np.flatnonzero(self._tail >= threshold) + self._body.size))
