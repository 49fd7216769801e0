"""Prompt lookup: guess that a text goes on as it went on the last time that its end occurred.

Pure: no model, no clock. `Lookup` finds the place, `Drafter` judges how far to trust it, `StepCosts` knows what a
longer step costs, `shared_out` weighs one against the other. A guess is checked against every token that is drawn, also
when it was not computed, so trust is won and lost without paying for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Final

NGRAM_SIZE: Final = 3  # 2 and 4 guess no better, and an index of each is as large
MAX_MATCH: Final = 64  # a longer common past says no more
STEP_SIZES: Final = frozenset((2, 4, *range(8, 65, 4)))  # tokens of a step with guesses: what kernels are made for
# Chance that a match of 3, 4…7, 8…15, 16…31, 32… tokens holds for one token more, before any was seen.
FIRST_TRUST: Final = (0.4, 0.6, 0.8, 0.9, 0.95)
TRUST_RATE: Final = 0.1
MIN_GAIN: Final = 1.05


class Lookup:
    """An index of a growing text. `source` is where the text continued the last time that it ended as now, or None.

    `length` is how many tokens before `source` equal the end of the text, as far as that was looked at.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        text = self._tokens = list(tokens)
        self.source: int | None = None
        self.length = 0
        # what follows an n-gram's latest occurrence; that at the very end has nothing to follow yet
        starts = (text[i:-1] for i in range(NGRAM_SIZE))
        self._next = dict(zip(zip(*starts, strict=False), range(NGRAM_SIZE, len(text)), strict=False))
        self._find()

    def append(self, token_id: int) -> None:
        """O(1): the place is followed while it holds, else looked up."""
        text = self._tokens
        if len(text) >= NGRAM_SIZE:
            self._next[tuple(text[-NGRAM_SIZE:])] = len(text)
        text.append(token_id)
        if self.source is not None and text[self.source] == token_id:
            self.source += 1
            self.length = min(self.length + 1, MAX_MATCH)
        else:
            self._find()

    def _find(self) -> None:
        self.source = self._next.get(tuple(self._tokens[-NGRAM_SIZE:]))
        self.length = self._common_past(self.source) if self.source is not None else 0

    def _common_past(self, source: int) -> int:
        text, end, length = self._tokens, len(self._tokens), NGRAM_SIZE
        while length < min(source, MAX_MATCH) and text[source - 1 - length] == text[end - 1 - length]:
            length += 1
        return length

    def continuation(self, count: int) -> list[int]:
        """The `count` tokens that come next if the text repeats itself; [] when there is no place."""
        if self.source is None:
            return []
        guesses = self._tokens[self.source : self.source + count]
        period = len(guesses)
        while len(guesses) < count:  # the place is so near that the guess runs into itself
            guesses.append(guesses[-period])
        return guesses


class Drafter:
    """How many tokens to guess for one request."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._lookup = Lookup(tokens)
        self._trust = list(FIRST_TRUST)

    def append(self, token_id: int) -> None:
        """The next token of the text is known."""
        guess = self._lookup.continuation(1)
        if guess:
            level = _level(self._lookup.length)
            self._trust[level] += TRUST_RATE * ((guess[0] == token_id) - self._trust[level])
        self._lookup.append(token_id)

    def chances(self, max_drafts: int) -> list[float]:
        """How likely each of the next guesses is right with all before it; descending. [] where there is none."""
        if self._lookup.source is None:
            return []
        length = self._lookup.length
        return list(accumulate((self._trust[_level(length + n)] for n in range(max_drafts)), mul))

    def propose(self, count: int) -> list[int]:
        """The next `count` guesses."""
        return self._lookup.continuation(count)


def _level(match_length: int) -> int:
    return min(match_length.bit_length(), len(FIRST_TRUST) + 1) - 2


class StepCosts:
    """Seconds of a step by its number of tokens, as measured.

    A size that was not measured is believed to be as cheap as the next smaller one, so it is tried. One that was slow
    is not used and so not measured again; it may have been slow by chance: it is forgotten after a while, each time
    for longer.
    """

    MAX_TOKENS: Final = 64
    FIRST_PATIENCE: Final = 32  # steps
    MAX_PATIENCE: Final = 2048

    def __init__(self) -> None:
        self._step = 0
        self._seconds: dict[int, float] = {}
        self._measured_in: dict[int, int] = {}
        self._patience: dict[int, int] = {}

    def observe(self, num_tokens: int, seconds: float) -> None:
        if num_tokens > self.MAX_TOKENS:
            return
        self._step += 1
        before = self._seconds.get(num_tokens)
        if before is None:
            self._patience[num_tokens] = self.FIRST_PATIENCE
        elif not self._is_fresh(num_tokens):
            self._patience[num_tokens] = min(2 * self._patience[num_tokens], self.MAX_PATIENCE)
            seconds = min(seconds, before)
        else:  # slow by chance is more frequent than fast by chance
            seconds = before + (0.1 if seconds > before else 0.3) * (seconds - before)
        self._seconds[num_tokens] = seconds
        self._measured_in[num_tokens] = self._step

    def ratio(self, num_tokens: int, num_more: int) -> float:
        """How many times longer a step takes with `num_more` tokens than with `num_tokens`."""
        if num_more > self.MAX_TOKENS:
            return math.inf
        known = [size for size in self._seconds if size <= num_tokens or self._is_fresh(size)]
        return max(1.0, self._estimate(num_more, known) / self._estimate(num_tokens, known)) if known else 1.0

    def _is_fresh(self, num_tokens: int) -> bool:
        return self._step - self._measured_in[num_tokens] <= self._patience[num_tokens]

    def _estimate(self, num_tokens: int, known: list[int]) -> float:
        return self._seconds[max((size for size in known if size <= num_tokens), default=min(known))]


def shared_out(
    chances: Sequence[Sequence[float]], num_tokens: int, num_rows: int, room: int, costs: StepCosts
) -> list[int]:
    """How many guesses to compute of each text whose `Drafter.chances` these are; at most `room` in all.

    The likeliest ones, as many as make the most of the step's time. Without guesses the step has `num_tokens` and
    brings `num_rows` tokens.
    """
    ranked = sorted(((chance, -number) for number, each in enumerate(chances) for chance in each), reverse=True)
    best, best_gain, expected = 0, MIN_GAIN, 0.0
    for count, (chance, _) in enumerate(ranked[:room], 1):
        expected += chance
        if num_tokens + count in STEP_SIZES:
            gain = (1 + expected / num_rows) / costs.ratio(num_tokens, num_tokens + count)
            if gain > best_gain:
                best, best_gain = count, gain
    counts = [0] * len(chances)
    for _, number in ranked[:best]:
        counts[-number] += 1
    return counts
