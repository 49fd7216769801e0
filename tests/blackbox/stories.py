"""Texts that only one test has, and how much of a prompt the daemon had computed already."""

from __future__ import annotations

import random

WORDS = [
    "the",
    "kitchen",
    "light",
    "is",
    "on",
    "and",
    "music",
    "plays",
    "in",
    "every",
    "room",
    "while",
    "rain",
    "falls",
]


def story(num_words: int, seed: int) -> str:
    """A text that no other test has."""
    rng = random.Random(seed)
    return f"Story {seed}: " + " ".join(rng.choice(WORDS) for _ in range(num_words))


def cached_tokens(answer: dict[str, object]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index, no-any-return]


def prompt_tokens(answer: dict[str, object]) -> int:
    return answer["usage"]["prompt_tokens"]  # type: ignore[index, no-any-return]
