"""One request as the front end knows it, and how it went."""

from __future__ import annotations

from dataclasses import dataclass, field

from homeai.errors import RequestError
from homeai.messages import AddRequest, Finished, Progress
from homeai.request import FinishReason, WaitReason


@dataclass(eq=False, slots=True)
class Generation:
    """A request as the front end knows it, in flight and after. Instants are CLOCK_MONOTONIC, like the engine's."""

    add: AddRequest
    api: str  # the path that was called
    client_request_id: str | None = None
    key: str | None = None  # the name of its API key
    progress: Progress | None = None
    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, told with its end
    output_token_ids: list[int] = field(default_factory=list)  # as drawn, whatever the text is cut to
    was_parked: bool = False  # since its last token
    stopped: bool = False  # by the front end: what the engine still says of it does not count
    shown_text: str | None = None  # the end of its text, for the status page; None: nobody may look at it
    cut_off: bool = False  # by the server, not by its client
    is_leaving: bool = False  # the engine was told to end it, and has not said so yet
    is_moving: bool = False  # the engine was told to give it back, and has not said so yet
    waited_for: WaitReason | None = None  # why it was not in the batch, as was told last
    ran: list[tuple[float, float]] = field(default_factory=list)  # from when to when it was in the batch
    ran_since: float | None = None  # it is in the batch

    def goes_on(self, at: float) -> None:
        """It is in the batch from then on."""
        if self.ran_since is None:
            self.ran_since = at

    def stands_still(self, at: float) -> None:
        if self.ran_since is not None:
            self.ran.append((self.ran_since, at))
            self.ran_since = None


@dataclass(frozen=True, slots=True)
class Record:
    """How a request went: built once, for metrics and ledger."""

    generation: Generation
    finish_reason: FinishReason
    error: RequestError | None
    ended_at: float
    finished: Finished | None  # the engine's own counts, if it lived to tell
