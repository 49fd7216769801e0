"""The vocabulary of a GGUF file, for the front end: nothing of the weights is read."""

from __future__ import annotations

from pathlib import Path

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.card import read_card
from homeai.vocabulary import Vocabulary


def load_vocabulary(path: Path) -> Vocabulary:
    """Takes some 0.4 s; tokenising releases the interpreter lock.

    Raises `ModelLoadError`, with llama.cpp's own reason, for anything that is not a loadable GGUF.
    """
    model = Model(path, vocab_only=True)
    return Vocabulary(
        model.vocab,
        name=model.meta("general.name") or path.stem,
        n_ctx_train=_context_length(model),
        card=read_card(model),
        chat_template=model.chat_template,
        close=model.close,
    )


def _context_length(model: Model) -> int:
    """llama.cpp reads it only along with the weights."""
    return int(model.meta(f"{model.meta('general.architecture')}.context_length") or 0)
