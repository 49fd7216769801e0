"""A step's draws in one call of compiled code: `homeai_draw`, which scripts/llama-cpp.patch adds to llama.cpp.

The steps and their order are `BatchSampler`'s, with the same numbers. What few requests ask for (a grammar,
`typical_p`, XTC, log-probabilities, no `top_k`) is left to it, and so is every row where something is out of the
ordinary. Its eight draws from 262,144 tokens each take 1.5 ms, mostly numpy's calls on caches that the model has just
emptied; here they take 0.6.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
from llama_cpp._ggml import libggml

from homeai.sampling.philox import uniform
from homeai.sampling.row import Logits, TokenIds
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState

MAX_TOP_K: Final = 1024  # for that many, half of a row of 262,144 is looked into twice
NONE_DRAWN: Final = -1


class _Draw(ctypes.Structure):
    _fields_ = (
        ("row", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("temperature", ctypes.c_double),
        ("uniform", ctypes.c_double),
        ("token_id", ctypes.c_int32),
    )


class NativeSampler:
    """Draws what it `knows`; `sampler` draws everything else."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._draw = libggml.homeai_draw
        self._draw.restype = None
        self._draw.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Draw), ctypes.c_int32)

    @staticmethod
    def is_built_in() -> bool:
        """Whether this llama.cpp is the patched one."""
        return hasattr(libggml, "homeai_draw")

    @staticmethod
    def knows(state: SamplerState) -> bool:
        """Whether `draw` has words for all that the request asks."""
        params = state.params
        is_plain = params.typical_p >= 1 and params.xtc_probability <= 0 and params.logprobs is None
        return is_plain and state.grammar is None and (params.temperature <= 0 or 0 < params.top_k <= MAX_TOP_K)

    def draw(
        self, logits: Logits, rows: Sequence[int], states: Sequence[SamplerState], output_indices: Sequence[int]
    ) -> list[int | None]:
        """One token for each of `rows` of `logits` [rows, vocabulary], C-contiguous, which are as they were after: row
        `rows[i]` is `states[i]`'s token `output_indices[i]`. None where `BatchSampler` has to draw."""
        draws = (_Draw * len(rows))(*[_draw_of(*each) for each in zip(rows, states, output_indices, strict=True)])
        originals: list[tuple[int, TokenIds, Logits]] = []
        for row, state, output_index in zip(rows, states, output_indices, strict=True):
            for ids, values in self._sampler.edits(logits[row], state, output_index):
                originals.append((row, ids, logits[row, ids]))
                logits[row, ids] = values
        self._draw(logits.ctypes.data, logits.shape[1], draws, len(draws))
        broken = set()
        for row, ids, values in reversed(originals):
            logits[row, ids] = values
            if not (values < np.inf).all():
                broken.add(row)
        return [draw.token_id if draw.token_id != NONE_DRAWN and draw.row not in broken else None for draw in draws]


def _draw_of(row: int, state: SamplerState, output_index: int) -> _Draw:
    params = state.params
    if params.temperature <= 0:
        return _Draw(row, 1, 1.0, 0.0, 1.0, 0.0)
    return _Draw(row, params.top_k, params.top_p, params.min_p, params.temperature, uniform(params.seed, output_index))
