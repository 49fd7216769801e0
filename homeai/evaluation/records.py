"""What a run left behind: one record per request, one per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from homeai.request import FinishReason, Mode

Owner = tuple[str, str]  # class, source


@dataclass(slots=True)
class RequestRecord:
    """One request's life; instants in seconds of the run. `finish_reason` None: refused, too long for the model."""

    request_id: str
    source: str
    fairness_class: str
    arrival_at: float
    num_prompt_tokens: int
    admitted_at: float | None = None
    token_times: list[float] = field(default_factory=list)
    finished_at: float | None = None
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    parked_s: float = 0.0

    @property
    def first_token_at(self) -> float | None:
        return self.token_times[0] if self.token_times else None


class StepRecord(NamedTuple):
    """One step as it ran.

    num_idle_rows: seats of the batch left empty while somebody waited. service: weighted tokens that each owner got.
    backlogged: owners with a request that was not in the step.
    """

    started_at: float
    step_s: float
    mode: Mode
    num_rows: int
    num_idle_rows: int
    num_decode_tokens: int
    num_prefill_tokens: int
    num_waiting: int
    num_preemptions: int
    kv_used: int
    service: dict[Owner, float]
    backlogged: frozenset[Owner]


@dataclass(slots=True)
class Run:
    requests: list[RequestRecord]
    steps: list[StepRecord]
    wall_s: float
