"""One chunk as a runner computes it, and the draws behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import NamedTuple

from homeai.backends.shared.live import Live
from homeai.errors import GrammarFailed
from homeai.request import SampledToken
from homeai.sampling.row import Logits
from homeai.sampling.sampler import BatchSampler
from homeai.scheduling.plan import Chunk


class Work(NamedTuple):
    """A chunk that is computed, and the guesses behind it."""

    chunk: Chunk
    live: Live
    drafts: list[int]

    @property
    def num_tokens(self) -> int:
        return self.chunk.num_tokens + len(self.drafts)

    @property
    def num_outputs(self) -> int:
        return self.chunk.num_outputs + len(self.drafts)

    @property
    def head(self) -> Work:
        """All but its last token, without logits."""
        chunk = self.chunk._replace(num_tokens=self.chunk.num_tokens - 1, num_outputs=0, num_drafts=0)
        return Work(chunk, self.live, [])

    @property
    def last(self) -> Work:
        """Its last token, and what follows from it."""
        start = self.chunk.start + self.chunk.num_tokens - 1
        return self._replace(chunk=self.chunk._replace(start=start, num_tokens=1))

    def draw(
        self,
        sampler: BatchSampler,
        logits: Logits,
        first: int,
        end_token_ids: Collection[int],
        drawn: Sequence[int | None] = (),
    ) -> list[SampledToken]:
        """One token, and one more for each guess that was right; from rows `first` … of `logits` [rows, vocabulary].

        `drawn`: the tokens of the first rows, where they are known already. Raises `GrammarFailed`.
        """
        _, live, drafts = self
        tokens: list[SampledToken] = []
        for row, known in zip_longest(range(first, first + 1 + len(drafts)), drawn):
            if known is None:
                token = sampler.draw(logits, row, live.sampler, live.num_output_tokens)
            else:
                token = SampledToken(known)
            is_end = _is_end(live, token.token_id, end_token_ids)
            live.append(token.token_id)
            tokens.append(token)
            if is_end or len(tokens) > len(drafts) or drafts[len(tokens) - 1] != token.token_id:
                break
        return tokens


def work_out_grammars(works: Sequence[Work]) -> None:
    """What each grammar allows next, while a GPU computes."""
    for work in works:
        grammar = work.live.sampler.grammar
        if grammar is not None and work.num_outputs:
            with contextlib.suppress(GrammarFailed):  # its draw finds the same
                grammar.allowed()


def _is_end(live: Live, token_id: int, end_token_ids: Collection[int]) -> bool:
    params = live.sampler.params
    must_go_on = params.ignore_eos or live.num_output_tokens < params.min_tokens
    return token_id in end_token_ids and not (must_go_on and params.grammar is None)
