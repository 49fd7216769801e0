"""What the requests of a step change of their logits before they draw, gathered for one copy to the device.

Each change touches a few tokens of a row: end tokens that may not come yet, `logit_bias`, and the penalties for what
the text holds. Pure but for numpy; `device_sampler.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from homeai.sampling.grammar import Allowed
from homeai.sampling.state import SamplerState

Floats = npt.NDArray[np.float64]


class Edits(NamedTuple):
    """One column per change, in float64, which holds every token id exactly.

    added: [3, n] row, token, what is added (-inf: it cannot come).
    penalised: [6, n] row, token, how often it is in the window, and the three penalties: repeat, presence, frequency.
    """

    added: Floats
    penalised: Floats


def edits(states: Sequence[SamplerState], must_go_on: Sequence[bool], end_token_ids: Iterable[int]) -> Edits:
    """Row i is a draw of `states[i]`, which may not end where `must_go_on[i]`."""
    ends = sorted(end_token_ids)
    added: list[Floats] = [np.empty((3, 0))]
    penalised: list[Floats] = [np.empty((6, 0))]
    for row, (state, goes_on) in enumerate(zip(states, must_go_on, strict=True)):
        if goes_on:
            added.append(_columns(row, ends, np.full(len(ends), -np.inf)))
        if state.bias_ids.size:
            added.append(_columns(row, state.bias_ids, state.bias))
        if state.window is not None and state.window.counts:
            counts, params = state.window.counts, state.params
            of_window = _columns(row, list(counts), np.fromiter(counts.values(), np.float64, len(counts)))
            factors = np.array([[params.repeat_penalty], [params.presence_penalty], [params.frequency_penalty]])
            penalised.append(np.concatenate((of_window, np.repeat(factors, len(counts), axis=1))))
    return Edits(np.concatenate(added, axis=1), np.concatenate(penalised, axis=1))


def can_only_end(allowed: Allowed, end_token_ids: Iterable[int]) -> bool:
    """The grammar allows end tokens and nothing else: then they may come, whatever the request says."""
    ends = np.array(sorted(end_token_ids), np.intp)
    return allowed.count == np.count_nonzero(allowed.among(ends))


def _columns(row: int, token_ids: npt.ArrayLike, values: npt.ArrayLike) -> Floats:
    ids = np.asarray(token_ids, np.float64)
    return np.stack((np.full(ids.size, float(row)), ids, np.asarray(values, np.float64)))
