"""All that the checks may look at, gathered once. Pure values: bytes, seconds, Unix time; shares are 0 … 1."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from homeai.config import Config
from homeai.status import Status
from homeai.vitals import Vitals

OUTSIDE = ("not_resident", "paused")  # reasons of requests that no engine has


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of the ledger."""

    arrival: float
    source: str
    fairness_class: str
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    prefix_hashes: Sequence[str] = ()
    queue_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    parked_s: float = 0.0
    num_preemptions: int = 0
    num_recomputed: int = 0
    status: int = 200
    finish_reason: str | None = None
    reject_reason: str | None = None

    @property
    def num_uncached(self) -> int:
        return max(0, self.num_prompt - self.num_cached)

    @property
    def prefill_s(self) -> float | None:
        """From the batch to the first token."""
        return None if self.ttft_s is None else self.ttft_s - (self.queue_s or 0.0)

    @property
    def ended_at(self) -> float:
        return self.arrival + (self.e2e_s or 0.0)


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    kind: str
    detail: str


class Quiet(enum.StrEnum):
    """Why there is no status."""

    REFUSED = "nothing listens there"
    TIMEOUT = "it accepts a connection, and says nothing"
    FOREIGN = "what answers is not homeai"
    LOCKED = "it wants an API key"
    UNREACHABLE = "it cannot be reached"


@dataclass(frozen=True, slots=True)
class Silence:
    why: Quiet
    detail: str


@dataclass(frozen=True, slots=True)
class Listener:
    """Who has the daemon's port. `pid` None: of another user, and not told."""

    port: int
    pid: int | None
    name: str | None
    user: str | None
    is_homeai: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """As `systemctl show` tells it. `scope` is system or user."""

    name: str
    scope: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    exit_code: int | None
    num_restarts: int
    status_text: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    path: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Access:
    """A file or folder that the daemon needs. `problem` None: it is there, and may be used as needed."""

    what: str
    path: str
    user: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class GPUHealth:
    """What the driver tells beyond memory and load. `throttled`: NVML's reasons in force, in its words."""

    name: str
    throttled: Sequence[str] = ()
    temperature: int | None = None
    slowdown_temperature: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphics:
    """NVIDIA cards: on the bus, as device files, for the driver. `driver_error` None: NVML answers, or no card."""

    on_bus: Sequence[str] = ()
    driver_error: str | None = None
    module_loaded: bool = False
    unusable_nodes: Sequence[str] = ()  # device files that the daemon's user may not open
    health: GPUHealth | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """The llama.cpp of this installation. `has_cuda`: it was compiled for NVIDIA cards."""

    has_cuda: bool
    version: str


@dataclass(frozen=True, slots=True)
class Busy:
    """A program that is not the daemon's, and how many CPUs it keeps busy."""

    pid: int
    name: str
    num_cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the daemon runs, or is to run."""

    num_cpus: int
    total_bytes: int
    available_bytes: int
    swap_used_bytes: int = 0
    others: Sequence[Busy] = ()  # the busiest first
    others_cpus: float = 0.0  # of all others together
    cpu_throttle_events: int = 0  # while it was looked at
    disks: Sequence[Disk] = ()
    accesses: Sequence[Access] = ()
    graphics: Graphics = Graphics()
    build: Build | None = None
    units: Sequence[Unit] = ()
    listener: Listener | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The vitals' slices, added up."""

    num_samples: int
    busy_s: float
    running: float
    waiting: float
    max_running: int
    max_waiting: int
    max_kv_used: int
    reasons: Mapping[str, float]
    step_s: float
    host_s: float
    num_steps: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_preemptions: int
    num_out_of_room: int
    num_evictions: int
    max_lag_s: float
    gpu_load: float | None

    @property
    def mean_step_s(self) -> float:
        return self.step_s / self.num_steps if self.num_steps else 0.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`machine` None: the daemon is on another one. `config`: in force, else as this command's options say; None with
    `config_error`. `gaps`: what could not be looked at, and why."""

    at: float
    url: str
    hours: float = 24.0
    silence: Silence | None = None
    status: Status | None = None
    vitals: Vitals | None = None
    itl_p95_s: Mapping[str, float] = field(default_factory=dict)  # by class, since the daemon's start
    rows: Sequence[Row] = ()
    events: Sequence[Event] = ()
    config: Config | None = None
    config_error: str | None = None
    machine: Machine | None = None
    gaps: Sequence[str] = ()

    @cached_property
    def window(self) -> Window | None:
        """None without the vitals."""
        slices = self.vitals.slices if self.vitals else []
        if not slices:
            return None
        num_samples = sum(each.num_samples for each in slices)
        reasons: defaultdict[str, float] = defaultdict(float)
        for each in slices:
            for reason, waited_s in each.reasons.items():
                reasons[reason] += waited_s
        loads = [each.gpu_load for each in slices if each.gpu_load is not None]
        return Window(
            num_samples=num_samples,
            busy_s=float(sum(each.num_busy_samples for each in slices)),
            running=sum(each.running * each.num_samples for each in slices) / max(1, num_samples),
            waiting=sum(each.waiting * each.num_samples for each in slices) / max(1, num_samples),
            max_running=max(each.max_running for each in slices),
            max_waiting=max(each.max_waiting for each in slices),
            max_kv_used=max(each.max_kv_used for each in slices),
            reasons=dict(reasons),
            step_s=sum(each.step_s for each in slices),
            host_s=sum(each.host_s for each in slices),
            num_steps=sum(each.num_steps for each in slices),
            num_prefill_tokens=sum(each.num_prefill_tokens for each in slices),
            num_decode_tokens=sum(each.num_decode_tokens for each in slices),
            num_preemptions=sum(each.num_preemptions for each in slices),
            num_out_of_room=sum(each.num_out_of_room for each in slices),
            num_evictions=sum(each.num_evictions for each in slices),
            max_lag_s=max(each.max_lag_s for each in slices),
            gpu_load=sum(loads) / len(loads) if loads else None,
        )

    @cached_property
    def served(self) -> Sequence[Row]:
        """Rows with an answer's first token."""
        return [row for row in self.rows if row.ttft_s is not None and row.num_output > 0]

    @property
    def num_kv_cells(self) -> int:
        return self.status.kv.total if self.status else 0

    @property
    def on_gpu(self) -> bool:
        return self.status is not None and self.status.model.device == "cuda"

    def ttft_target_s(self, fairness_class: str) -> float | None:
        known = self.config.classes.get(fairness_class) if self.config else None
        return known.ttft_target_s if known else None
