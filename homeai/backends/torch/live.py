"""What the runner keeps of one request: its tokens, its sampler, and what it guesses by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from homeai.backends.llamacpp.drafts import Drafter
from homeai.backends.llamacpp.tokens import TokenBuffer
from homeai.request import Request
from homeai.sampling.grammar import GrammarState
from homeai.sampling.state import SamplerState
from homeai.scheduling.plan import Chunk


class Live:
    __slots__ = ("_drafter", "num_prompt_tokens", "sampler", "tokens")

    def __init__(self, request: Request, grammar: GrammarState | None, piece: Callable[[int], bytes]) -> None:
        self.num_prompt_tokens = request.num_prompt_tokens
        self.tokens = TokenBuffer(request.prompt_token_ids, room=64)
        self.sampler = SamplerState(request.sampling, request.prompt_token_ids, grammar, piece=piece)
        self._drafter: Drafter | None = None  # from the first step on that may have drafts
        for token_id in request.output_token_ids:
            self.append(token_id)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def drafter(self) -> Drafter:
        if self._drafter is None:
            self._drafter = Drafter(self.tokens.slice(0, len(self.tokens)).tolist())
        return self._drafter

    def append(self, token_id: int) -> None:
        """Raises `GrammarFailed`."""
        self.tokens.append(token_id)
        self.sampler.observe(token_id)
        if self._drafter is not None:
            self._drafter.append(token_id)


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


class Rows(NamedTuple):
    """Computed work and its logits: rows `first` … of `logits`, float32 [rows, vocabulary]."""

    work: Work
    logits: torch.Tensor
    first: int
