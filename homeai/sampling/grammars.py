"""Grammars made ready, beside the engine's loop: reading the vocabulary once, compiling, remembering what was compiled.

Reading the vocabulary takes about a second and 100 MB, so it waits for the first request that brings a grammar; that
one waits for it, and nobody else does. A grammar that came before is there at once.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from homeai.request import Grammar
from homeai.sampling.grammar import GrammarState
from homeai.sampling.guidance import Matcher, Tokenizer
from homeai.vocabulary import Vocab

MAX_REMEMBERED: Final = 32


class Grammars:
    """Any thread may call `start`; the states that come of it belong to whoever asked."""

    def __init__(self, vocab: Vocab, end_token_ids: frozenset[int]) -> None:
        self._vocab = vocab
        self._end_token_ids = end_token_ids
        self._tokenizer: Tokenizer | None = None
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()  # by source, as they were before any text
        self._thread = ThreadPoolExecutor(1, "grammars")

    def start(self, grammar: Grammar) -> Future[GrammarState]:
        """A text at its beginning. Done already if the grammar came before; fails with `GrammarFailed`."""
        matcher = self._compiled.get(grammar.source)
        if matcher is None:
            return self._thread.submit(self._compile, grammar)
        started: Future[GrammarState] = Future()
        started.set_result(self._state(grammar, matcher))
        return started

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._compiled.clear()
        self._tokenizer = None

    def _compile(self, grammar: Grammar) -> GrammarState:
        matcher = self._compiled.pop(grammar.source, None)
        if matcher is None:
            if self._tokenizer is None:
                self._tokenizer = Tokenizer(self._vocab, self._end_token_ids)
            matcher = Matcher.compile(self._tokenizer, grammar.source)
        self._compiled[grammar.source] = matcher
        if len(self._compiled) > MAX_REMEMBERED:
            self._compiled.popitem(last=False)
        return self._state(grammar, matcher)

    def _state(self, grammar: Grammar, matcher: Matcher) -> GrammarState:
        return GrammarState(grammar, matcher.clone(), self._vocab.n_tokens, self._end_token_ids, self._piece)

    def _piece(self, token_id: int) -> bytes:
        return self._vocab.piece(token_id, special=True)
