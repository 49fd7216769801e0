"""What the status looks back on, kept as it happens: history, recent requests, pace. Reads the clocks for them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from homeai.messages import StepStats
from homeai.server.generation import Generation, Record
from homeai.server.history import History
from homeai.server.pace import Pace
from homeai.server.recent import Recent


@dataclass(frozen=True, slots=True)
class Lookback:
    history: History = field(default_factory=History)
    recent: Recent = field(default_factory=Recent)
    pace: Pace = field(default_factory=Pace)

    @property
    def num_changes(self) -> int:
        """Grows when there is something new to look at, steps apart."""
        return self.history.num_changes + self.recent.num_ended

    def state(self, state: str, detail: str) -> None:
        self.history.state(state, time.time(), detail)

    def event(self, kind: str, detail: str) -> None:
        self.history.event(kind, time.time(), detail)

    def stepped(self, stats: StepStats) -> None:
        if stats.num_prefill_tokens + stats.num_decode_tokens:
            self.history.mode(stats.mode, time.time())
            self.pace.step(stats.num_prefill_tokens, stats.num_decode_tokens, time.monotonic())

    def first_token(self, fairness_class: str, seconds: float) -> None:
        self.pace.first_token(fairness_class, seconds, time.monotonic())

    def gap(self, fairness_class: str, seconds: float) -> None:
        self.pace.gap(fairness_class, seconds, time.monotonic())

    def ended(self, record: Record, live: Iterable[Generation], status: int) -> None:
        self.recent.ended(record, live, status=status, at=time.time())
