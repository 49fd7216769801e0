"""Texts that follow a grammar, drawn at random byte by byte, and what a grammar says of a text."""

from __future__ import annotations

import random

import llguidance
import numpy as np
from llguidance import LLMatcher

BYTES = llguidance.LLTokenizer("byte")
CLOSING = b'"}]>'
MAX_BYTES = 4000


def matcher_of(source: str) -> LLMatcher:
    matcher = LLMatcher(BYTES, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(source: str, text: str) -> bool:
    """Whether the whole text may be an answer."""
    matcher, tokens = matcher_of(source), list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def written(source: str, seed: int) -> str | None:
    """A text that follows the grammar; None where the draws came to no end. Things are closed sooner than later."""
    matcher, rng = matcher_of(source), random.Random(seed)
    text = bytearray()
    while len(text) < MAX_BYTES:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[:256]).tolist()
        if matcher.is_accepting() and (not allowed or rng.random() < 0.5):
            return text.decode()
        assert allowed, f"{bytes(text)!r} can neither go on nor end: {matcher.get_error()}"
        closing = [byte for byte in allowed if byte in CLOSING]
        byte = rng.choice(closing if closing and rng.random() < 0.3 else allowed)
        assert matcher.consume_token(byte)
        text.append(byte)
    return None
