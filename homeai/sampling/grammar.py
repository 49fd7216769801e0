"""What a request's grammar allows next, and where its text stands in it.

`GrammarState` decides from when on the grammar counts (`Grammar.triggers`); which tokens fit is the matcher's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from homeai.request import Grammar
from homeai.sampling.row import TokenIds

Bits = npt.NDArray[np.uint8]


class Matcher(Protocol):
    """A grammar, and where a text stands in it. All of them raise `GrammarFailed` when it can no longer be followed."""

    def mask(self) -> Bits:
        """A bit per token that may come next, token 0 the lowest of byte 0; end tokens when the text is complete."""
        ...

    def consume(self, token_id: int) -> None: ...

    def fits(self, token_ids: Sequence[int]) -> bool:
        """Whether all of them may come next, one after the other."""
        ...

    def tokenize(self, text: bytes) -> list[int]: ...


class Allowed:
    """The tokens that a grammar allows at one place of a text."""

    def __init__(self, bits: Bits, vocab_size: int) -> None:
        self._bits = bits
        self._vocab_size = vocab_size

    @property
    def bits(self) -> Bits:
        """As the matcher gave them: one per token, in whole words of 32."""
        return self._bits

    @cached_property
    def count(self) -> int:
        return int(np.bitwise_count(self._bits).sum())

    @cached_property
    def flags(self) -> npt.NDArray[np.bool_]:
        """[vocabulary]"""
        return np.unpackbits(self._bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    @cached_property
    def ids(self) -> TokenIds:
        """Ascending."""
        return np.flatnonzero(self.flags)

    def among(self, ids: TokenIds) -> npt.NDArray[np.bool_]:
        """Whether each of `ids` is allowed. Costs those, not the vocabulary."""
        bits: Bits = self._bits[ids >> 3] >> (ids & 7).astype(np.uint8) & 1
        return bits.astype(np.bool_)


class GrammarState:
    """One request's place in its grammar. Its owner is the runner.

    With triggers the output is free until one of them stands in its text. The grammar begins at the trigger's first
    byte: what a token brings before that is free text, what it brings after it must fit.
    """

    def __init__(
        self,
        grammar: Grammar,
        matcher: Matcher,
        vocab_size: int,
        end_token_ids: frozenset[int],
        piece: Callable[[int], bytes],
    ) -> None:
        """`piece` gives the bytes of a token, of a control token its name."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self._piece = piece
        self._triggers = [trigger.encode() for trigger in grammar.triggers]
        self._num_tail_bytes = max(map(len, self._triggers), default=0) - 1
        self._tail: list[tuple[int, bytes]] = []  # the last tokens of the free text, a trigger may begin in them
        self._is_free = bool(self._triggers)
        self._is_over = False
        self._allowed: Allowed | None = None

    def allowed(self) -> Allowed | None:
        """The tokens that may come next; None for any. Worked out once per token. Raises `GrammarFailed`."""
        if self._is_free or self._is_over:
            return None
        if self._allowed is None:
            self._allowed = Allowed(self._matcher.mask(), self._vocab_size)
        return self._allowed

    def refuses(self, token_id: int) -> bool:
        """Whether the token completes a trigger in free text and then goes on in a way that no call does."""
        if not self._is_free or token_id in self._end_token_ids:
            return False
        begun = self._begun(token_id)
        return begun is not None and not self._matcher.fits(begun)

    def advance(self, token_id: int) -> None:
        """A token was appended to the output. Raises `GrammarFailed`."""
        if self._is_over:
            return
        if token_id in self._end_token_ids:
            self._is_over = True
        elif not self._is_free:
            self._matcher.consume(token_id)
        elif (begun := self._begun(token_id)) is not None:
            self._is_free = False
            self._tail.clear()
            for begun_id in begun:
                self._matcher.consume(begun_id)
        else:
            self._remember(token_id)
        self._allowed = None

    def _begun(self, token_id: int) -> list[int] | None:
        """The tokens of the grammar's text so far, if one more token completes a trigger.

        They are the output's own, but for a token in whose middle the trigger begins: the rest of it counts.
        """
        tokens = [*self._tail, (token_id, self._piece(token_id))]
        text = b"".join(piece for _, piece in tokens)
        start = min((found for trigger in self._triggers if (found := text.find(trigger)) >= 0), default=None)
        if start is None:
            return None
        while start >= len(tokens[0][1]):
            start -= len(tokens.pop(0)[1])
        if start == 0:
            return [number for number, _ in tokens]
        return self._matcher.tokenize(tokens[0][1][start:]) + [number for number, _ in tokens[1:]]

    def _remember(self, token_id: int) -> None:
        self._tail.append((token_id, self._piece(token_id)))
        num_bytes = sum(len(piece) for _, piece in self._tail)
        while self._tail and num_bytes - len(self._tail[0][1]) >= self._num_tail_bytes:
            num_bytes -= len(self._tail.pop(0)[1])
