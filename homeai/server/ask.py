"""How a client wants its answer drawn, whatever the API it came through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homeai.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """`sampling` says how to draw; its `max_tokens` and `seed` are still the client's wishes below.

    `max_tokens` None: up to the model's length. `seed` None: one is drawn. `model` None: the resident one.
    """

    model: str | None = None
    sampling: SamplingParams
    max_tokens: int | None = None
    max_predict_s: float | None = None  # stops the answer at the next line end after so long (llama-server's)
    min_indent: int = 0  # stops the answer before a line that begins with fewer blanks (llama-server's)
    seed: int | None = None
    stop: Sequence[str] = ()
    n: int = 1
    cache_prompt: bool = True
    keep_alive_s: float | None = None  # how long the model is to stay loaded after it: 0 not at all, infinity for good
    user: str | None = None  # who asks, where nothing better says so
