"""What playing a trace left behind: one record per call, readings of the server in time, counters over all of it."""

from __future__ import annotations

import enum

import msgspec


class Ending(enum.StrEnum):
    """How a call ended, as the client saw it."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the client left, as the trace says
    REJECTED = "rejected"  # the server said no before the first token: busy, too long, not now
    FAILED = "failed"  # no answer, half an answer, or none within the time the bench gives


class CallRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Instants in seconds after the trace's start. `token_times`: one per piece of text; None: the server did not say.

    `sent_at` is the first attempt's, `due_at` the trace's: far apart, the bench itself was too slow.
    """

    index: int
    group: str
    source: str
    fairness_class: str
    due_at: float
    sent_at: float
    token_times: list[float] = []
    ended_at: float = 0.0
    ending: Ending = Ending.FAILED
    status: int | None = None
    reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None
    num_output_tokens: int = 0
    num_attempts: int = 1
    queue_s: float | None = None

    @property
    def first_token_at(self) -> float | None:
        return self.token_times[0] if self.token_times else None

    @property
    def ttft_s(self) -> float | None:
        return self.token_times[0] - self.sent_at if self.token_times else None


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The server at one instant. `utilisation` is the GPU's, without one the processor's, 0…1."""

    at: float
    num_running: int | None = None
    num_waiting: int | None = None
    kv_used: int | None = None
    kv_kept: int = 0
    kv_total: int | None = None
    rss_bytes: int | None = None
    gpu_bytes: int | None = None
    utilisation: float | None = None
    num_preemptions: int | None = None


class Counters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened meanwhile; None: cannot be read here. `busy_s`: time in which a step ran.

    `queue_p95_s` is interpolated in the server's histogram. `num_loads`: the engine started (anew), e.g. out of memory.
    """

    num_preemptions: int | None = None
    num_evictions: int | None = None
    num_out_of_room: int | None = None
    num_recomputed_tokens: int | None = None
    num_idle_rows: int | None = None
    num_loads: int | None = None
    busy_s: float | None = None
    queue_p95_s: float | None = None
    joules: float | None = None


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """A trace as it was played. `wall_s`: until its last answer, and at least as long as it was to take."""

    records: list[CallRecord]
    readings: list[Reading]
    counters: Counters
    wall_s: float
