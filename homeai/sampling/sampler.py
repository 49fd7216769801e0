"""The batch's draws: one token per logits row.

Each row goes through the same steps, in llama.cpp's order:

1. mask       end tokens, while the request must go on
2. bias       `logit_bias`
3. penalties  for what the text holds, then DRY's for what would repeat a passage of it
4. draw       greedy, or top-k → typical → top-p → min-p → XTC → temperature → inverse CDF in token-id order

Where a grammar counts, step 4 sees the tokens that it allows and no others: what is drawn is what masking all the
others first would give, whichever way is the cheapest here. In steps 1 to 3 nothing changes, but that a text whose
grammar leaves nothing but its end has one.

A draw depends on the row, the request's parameters and (seed, output index); never on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from homeai.errors import BrokenLogits, GrammarFailed
from homeai.request import SampledToken, SamplingParams
from homeai.sampling.grammar import Allowed
from homeai.sampling.logprobs import with_logprobs
from homeai.sampling.philox import uniform
from homeai.sampling.row import Candidates, Logits, Row, TokenIds
from homeai.sampling.state import SamplerState
from homeai.sampling.truncation import survivors, survivors_among, truncates
from homeai.sampling.weights import pick, softmax_weights
from homeai.sampling.xtc import strikes, without_top_choices

FEW_TOKENS = 4096  # allowed at one place: their own logits are read, not the row's
SPARE = 4  # the grammar's tokens are looked for among so many times top-k of the likeliest


class BatchSampler:
    """Stateless but for the vocabulary; a `SamplerState` remembers what each request needs."""

    def __init__(self, vocab_size: int, end_token_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._end_ids = np.array(sorted(end_token_ids), np.intp)
        self._forbidden = np.full(self._end_ids.size, -np.inf, np.float32)

    def sample(
        self, logits: Logits, states: Sequence[SamplerState], output_indices: Sequence[int]
    ) -> list[SampledToken]:
        """`draw` for each row of `logits` [rows, vocabulary]: row i is `states[i]`'s token `output_indices[i]`."""
        assert len(logits) == len(states), f"{len(logits)} rows of logits for {len(states)} requests"
        return [self.draw(logits, i, *pair) for i, pair in enumerate(zip(states, output_indices, strict=True))]

    def draw(self, logits: Logits, row: int, state: SamplerState, output_index: int) -> SampledToken:
        """One row's token, out of `logits` [rows, vocabulary], C-contiguous. Logits and state are as they were after.

        A request may have several rows, each drawn when the token of the one before was observed.
        Raises BrokenLogits for a row that holds NaN or +inf, or nothing but -inf, and GrammarFailed where the
        request's grammar cannot be followed any further.
        """
        num_rows, vocab_size = logits.shape
        assert vocab_size == self._vocab_size, f"{vocab_size} logits in a row, {self._vocab_size} tokens"
        raw = Row(logits[row])
        if not math.isfinite(raw.peak):
            raise BrokenLogits(row, num_rows, raw.peak)
        return self._sample_row(raw, state, output_index)

    def _sample_row(self, row: Row, state: SamplerState, output_index: int) -> SampledToken:
        grammar = state.grammar
        allowed = grammar.allowed() if grammar is not None else None
        edits = self.edits(row.logits, state, output_index, allowed)
        originals = [(ids, row.replace(ids, values)) for ids, values in edits]
        token_id = self._draw(row, state.params, output_index, allowed)
        while grammar is not None and row.peak > -math.inf and grammar.refuses(token_id):
            refused = np.array([token_id], np.intp)
            originals.append((refused, row.replace(refused, -np.inf)))
            token_id = self._draw(row, state.params, output_index, allowed)
        for ids, logits in reversed(originals):
            row.logits[ids] = logits
        if state.params.logprobs is None:
            return SampledToken(token_id)
        own = Row(row.logits) if originals else row  # log-probabilities are of the model's own logits
        return with_logprobs(own, token_id, state.params.logprobs)

    def edits(
        self, logits: Logits, state: SamplerState, output_index: int, allowed: Allowed | None = None
    ) -> Iterator[tuple[TokenIds, Logits]]:
        """Steps 1 to 3 on a row [vocabulary]: a few tokens, each once, and their new logits. To be written before the
        next edit is asked for."""
        must_go_on = state.params.ignore_eos or output_index < state.params.min_tokens
        if must_go_on and not (allowed is not None and self._can_only_end(allowed)):
            yield self._end_ids, self._forbidden
        if state.bias_ids.size:
            yield state.bias_ids, logits[state.bias_ids] + state.bias
        if state.window:
            yield state.window.penalized(logits)
        if state.repetitions is not None:
            yield state.repetitions.penalized(logits)

    def _can_only_end(self, allowed: Allowed) -> bool:
        return allowed.count == np.count_nonzero(allowed.among(self._end_ids))

    def _draw(self, row: Row, params: SamplingParams, output_index: int, allowed: Allowed | None) -> int:
        """Step 4."""
        if allowed is not None:
            return _draw_allowed(row, params, output_index, allowed)
        if row.peak == -math.inf:
            return self._last_resort()
        if params.temperature <= 0:
            return row.argmax()
        return _draw_at_random(row, params, output_index)

    def _last_resort(self) -> int:
        """The request forbade every token. That must not stop the others: its own text can only end."""
        return int(self._end_ids[0]) if self._end_ids.size else 0


def _draw_allowed(row: Row, params: SamplingParams, output_index: int, allowed: Allowed) -> int:
    """Raises `GrammarFailed` when there is no token to draw."""
    if not allowed.count:
        raise GrammarFailed("the grammar allows no token here")
    candidates = _first_allowed(row, params, allowed)
    if candidates is None:  # neither few tokens nor the likeliest: the whole row, masked
        masked = Row(np.where(allowed.flags, row.logits, np.float32(-np.inf)))
        if masked.peak == -math.inf:
            return int(allowed.ids[0])
        return _draw_at_random(masked, params, output_index)
    if params.temperature <= 0 or candidates.logits[0] == -math.inf:  # forbidden all, but one of them must be it
        return int(candidates.ids[0])
    chosen = survivors_among(candidates, params, row.logits.size)
    return _pick(chosen, params, output_index)


def _first_allowed(row: Row, params: SamplingParams, allowed: Allowed) -> Candidates | None:
    """All allowed tokens, or the first of them as many as can be drawn, in their order; None where that costs more
    than the masked row."""
    k = 1 if params.temperature <= 0 else params.top_k
    if allowed.count <= FEW_TOKENS:
        return row.among(allowed.ids, k)
    if not 0 < k <= FEW_TOKENS:
        return None
    likeliest = row.top_k(SPARE * k)
    is_allowed = allowed.among(likeliest.ids)
    if np.count_nonzero(is_allowed) < k:
        return row.among(allowed.ids, k)
    return Candidates(likeliest.ids[is_allowed], likeliest.logits[is_allowed]).first(k)


def _draw_at_random(row: Row, params: SamplingParams, output_index: int) -> int:
    if not truncates(params, row.logits.size):
        return pick(softmax_weights(row.logits, params.temperature), uniform(params.seed, output_index))
    return _pick(survivors(row, params), params, output_index)


def _pick(candidates: Candidates, params: SamplingParams, output_index: int) -> int:
    """In token-id order: two nearly equal tokens that change rank do not change what is drawn."""
    if strikes(params.xtc_probability, params.seed, output_index):
        candidates = without_top_choices(candidates, params.xtc_threshold)
    ids, logits = candidates
    by_id = ids.argsort()
    weights = softmax_weights(logits[by_id], params.temperature)
    return int(ids[by_id[pick(weights, uniform(params.seed, output_index))]])
