"""The batch's draws on the device: the same law as `homeai.sampling`, and only token ids come back.

The steps and their order are `BatchSampler`'s, on all rows at once, with the same numbers (Philox by seed and output
index, in doubles); so a row draws the same token here and there, but for sums that are rounded in another order. What
few requests ask for (`typical_p`, XTC, DRY, log-probabilities) is left to it, and so is every row where something is
out of the ordinary: broken logits, or no token that may come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from homeai.backends.torch.edits import Edits, can_only_end, edits
from homeai.errors import GrammarFailed
from homeai.request import SamplingParams
from homeai.sampling.grammar import Allowed
from homeai.sampling.philox import uniform
from homeai.sampling.state import SamplerState

ASK_HOST: Final = -1
MAX_TOP_K: Final = 1024  # from here on sorting the row costs no more
ID_BITS: Final = 32


class _Rows(NamedTuple):
    """Parameters of the rows, [rows, 1] each, float64."""

    temperature: torch.Tensor
    num_top_k: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    uniform: torch.Tensor

    def among(self, rows: torch.Tensor) -> _Rows:
        return _Rows(*(column[rows] for column in self))


class DeviceSampler:
    """Stateless but for the vocabulary."""

    def __init__(self, vocab_size: int, end_token_ids: frozenset[int], device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self._device = device

    @staticmethod
    def knows(state: SamplerState) -> bool:
        """Whether `draw` has words for all that the request asks."""
        params = state.params
        is_plain = params.typical_p >= 1 and params.xtc_probability <= 0 and state.repetitions is None
        return is_plain and params.logprobs is None

    def draw(self, logits: torch.Tensor, states: Sequence[SamplerState], output_indices: Sequence[int]) -> list[int]:
        """One token per row of `logits` [rows, vocabulary], float32, which stay as they are; ASK_HOST where
        `BatchSampler` has to draw."""
        allowed, lost = self._allowed(states)
        row_edits = edits(states, self._go_on(states, output_indices, allowed), self._end_token_ids)
        params = np.array([self._row(state.params, i) for state, i in zip(states, output_indices, strict=True)])
        columns, changes = self._upload(params, row_edits)
        edited = _edited(logits, changes)
        if allowed:
            words = np.stack([places.bits for places in allowed.values()]).view(np.int32)
            self._forbid(edited, torch.tensor(list(allowed)), torch.from_numpy(words))
        tokens = self._drawn(edited, columns, [state.params for state in states])
        is_sound = logits.amax(1).isfinite() & (edited.amax(1) > -math.inf)
        drawn: list[int] = tokens.where(is_sound, torch.full_like(tokens, ASK_HOST)).tolist()
        return [ASK_HOST if row in lost else token for row, token in enumerate(drawn)]

    # ---- what the rows ask for -------------------------------------------------------------------

    def _allowed(self, states: Sequence[SamplerState]) -> tuple[dict[int, Allowed], set[int]]:
        """What grammars allow, by row, and the rows whose grammar allows nothing any more."""
        allowed: dict[int, Allowed] = {}
        lost: set[int] = set()
        for row, state in enumerate(states):
            if state.grammar is None:
                continue
            try:
                places = state.grammar.allowed()
            except GrammarFailed:
                lost.add(row)
                continue
            if places is not None and places.count:
                allowed[row] = places
            elif places is not None:
                lost.add(row)
        return allowed, lost

    def _go_on(
        self, states: Sequence[SamplerState], output_indices: Sequence[int], allowed: Mapping[int, Allowed]
    ) -> list[bool]:
        """Whose end tokens may not come: not those whose grammar leaves nothing else."""
        return [
            (state.params.ignore_eos or index < state.params.min_tokens)
            and not (row in allowed and can_only_end(allowed[row], self._end_token_ids))
            for row, (state, index) in enumerate(zip(states, output_indices, strict=True))
        ]

    def _row(self, params: SamplingParams, output_index: int) -> tuple[float, ...]:
        num_top_k = params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        log_min_p = math.log(params.min_p) if params.min_p > 0 else -math.inf
        return params.temperature, num_top_k, params.top_p, log_min_p, uniform(params.seed, output_index)

    def _upload(self, params: np.ndarray, row_edits: Edits) -> tuple[_Rows, tuple[torch.Tensor, torch.Tensor]]:
        """In one copy."""
        arrays = [params.T, row_edits.added, row_edits.penalised]
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
        if self._device.type == "cuda":
            flat = flat.pin_memory().to(self._device, non_blocking=True)
        parts = flat.split([array.size for array in arrays])
        columns, added, penalised = (part.view(array.shape) for part, array in zip(parts, arrays, strict=True))
        return _Rows(*columns[..., None]), (added, penalised)

    def _forbid(self, logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
        """In place: -inf where the grammar's bit is not set. `words`: [rows, vocabulary / 32], lowest bit first."""
        words, rows = words.to(self._device, non_blocking=True), rows.to(self._device)
        bits = words[:, :, None] >> torch.arange(32, device=self._device, dtype=torch.int32) & 1
        allowed = bits.flatten(1)[:, : self._vocab_size].bool()
        logits[rows] = logits[rows].masked_fill_(~allowed, -math.inf)

    # ---- draws -----------------------------------------------------------------------------------

    def _drawn(self, logits: torch.Tensor, rows: _Rows, params: Sequence[SamplingParams]) -> torch.Tensor:
        tokens = logits.argmax(1)
        for numbers, num_kept in self._kinds(params):
            index = torch.tensor(numbers, device=self._device)
            tokens[index] = _at_random(logits[index], rows.among(index), num_kept)
        return tokens

    def _kinds(self, params: Sequence[SamplingParams]) -> list[tuple[list[int], int]]:
        """Rows that draw at random: those whose few best tokens are enough, those that need all of them in their
        order, and those (0) that need no order."""
        few: list[int] = []
        every: list[int] = []
        plain: list[int] = []
        for row, p in enumerate(params):
            if p.temperature <= 0:
                continue
            if 0 < p.top_k <= min(MAX_TOP_K, self._vocab_size):
                few.append(row)
            elif p.top_p < 1 or p.min_p > 0 or 0 < p.top_k < self._vocab_size:
                every.append(row)
            else:
                plain.append(row)
        most = max((params[row].top_k for row in few), default=0)
        return [(rows, count) for rows, count in ((few, most), (every, self._vocab_size), (plain, 0)) if rows]


def _edited(logits: torch.Tensor, changes: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A copy with masks and biases added, then penalties."""
    edited = logits.clone()
    added, penalised = changes
    if added.shape[1]:
        edited.index_put_((added[0].long(), added[1].long()), added[2].float(), accumulate=True)
    if penalised.shape[1]:
        place = penalised[0].long(), penalised[1].long()
        counts, repeat, presence, frequency = penalised[2:].float()
        before = edited[place]
        # Dividing a negative logit would make its token likelier.
        after = torch.where(before <= 0, before * repeat, before / repeat) - (counts * frequency + presence)
        edited.index_put_(place, after)
    return edited


def _at_random(logits: torch.Tensor, rows: _Rows, num_kept: int) -> torch.Tensor:
    """`num_kept`: of the best tokens, how many are looked at; 0: all of them, and nothing is cut off."""
    if not num_kept:
        best = logits.double()
        weights = ((best - best.amax(1, keepdim=True)) / rows.temperature).exp()
        return _pick(weights, rows.uniform)
    ids = _best(logits, num_kept)
    values = logits.gather(1, ids).double()
    below = values - values[:, :1]
    rank = torch.arange(num_kept, device=logits.device)[None]
    weights = below.exp().masked_fill_(rank >= rows.num_top_k, 0.0)
    cumulative = weights.cumsum(1)
    in_top_p = (cumulative < rows.top_p * cumulative[:, -1:]).sum(1, keepdim=True) + 1
    in_top_p = torch.where(rows.top_p < 1, in_top_p, num_kept)
    in_min_p = (values >= values[:, :1] + rows.log_min_p).sum(1, keepdim=True)
    is_cut = rank >= torch.minimum(torch.minimum(in_top_p, in_min_p).double(), rows.num_top_k)
    weights = (below / rows.temperature).exp().masked_fill_(is_cut, 0.0)
    by_id, order = ids.sort(1)
    position = _pick(weights.gather(1, order), rows.uniform)
    return by_id.gather(1, position[:, None])[:, 0]


def _best(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the highest logits, equal ones by lowest id: [rows, count]."""
    bits = (logits + 0.0).view(torch.int32)  # -0 becomes 0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()  # as the floats are
    last = logits.shape[1] - 1
    keys = (ordered << ID_BITS) | (last - torch.arange(last + 1, device=logits.device))
    return last - (keys.topk(count, dim=1).values & ((1 << ID_BITS) - 1))


def _pick(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Where the cumulative weight first exceeds its part of the total: [rows]."""
    cumulative = weights.cumsum(1)
    position = (cumulative <= uniforms * cumulative[:, -1:]).sum(1)
    return position.clamp_(max=weights.shape[1] - 1)
