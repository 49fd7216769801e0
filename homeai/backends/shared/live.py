"""What a runner keeps of the requests that it was given: tokens, sampler, and what it guesses by."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from homeai.backends.shared.drafts import Drafter
from homeai.backends.shared.tokens import TokenBuffer
from homeai.request import Request
from homeai.sampling.grammar import GrammarState
from homeai.sampling.grammars import Grammars
from homeai.sampling.state import SamplerState

Piece = Callable[[int], bytes]


class Live:
    """One request."""

    __slots__ = ("_drafter", "num_prompt_tokens", "sampler", "tokens")

    def __init__(self, request: Request, grammar: GrammarState | None, piece: Piece) -> None:
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


class LiveRequests:
    """All of them, by id; `prepare`, `add` and `remove` are `ModelRunner`'s."""

    def __init__(self, grammars: Grammars, piece: Piece) -> None:
        """`piece`: a token's bytes."""
        self._grammars = grammars
        self._piece = piece
        self._started: dict[str, Future[GrammarState]] = {}  # of requests that are prepared and not added yet
        self._live: dict[str, Live] = {}

    def __getitem__(self, request_id: str) -> Live:
        return self._live[request_id]

    def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
        if request.sampling.grammar is None:
            return True
        started = self._started[request.request_id] = self._grammars.start(request.sampling.grammar)
        if not started.done():
            started.add_done_callback(lambda _: on_prepared())
            return False
        return True

    def add(self, request: Request) -> None:
        started = self._started.pop(request.request_id, None)
        if started is None and request.sampling.grammar is not None:
            started = self._grammars.start(request.sampling.grammar)
        grammar = started.result() if started is not None else None
        self._live[request.request_id] = Live(request, grammar, self._piece)

    def remove(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        self._started.pop(request_id, None)

    def close(self) -> None:
        self._live.clear()
        self._started.clear()
        self._grammars.close()
