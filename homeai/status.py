"""The shape of /api/status: built by the server, read by the status page and `homeai status`."""

from __future__ import annotations

import msgspec


class LoadStatus(msgspec.Struct, frozen=True):
    stage: str
    fraction: float


class ModelStatus(msgspec.Struct, frozen=True):
    name: str | None
    file: str
    size_bytes: int | None
    device: str | None
    max_model_len: int | None
    template: str | None
    load_s: float | None


class StartupStatus(msgspec.Struct, frozen=True):
    """How long what is resident took to be so, in seconds. `parts_s` follow one another, as far as they are ours to
    say; `vocabulary_s` went on beside them, in the server's process."""

    total_s: float
    parts_s: dict[str, float]
    vocabulary_s: float | None


class GPUStatus(msgspec.Struct, frozen=True):
    name: str
    used_bytes: int
    total_bytes: int
    utilisation: float


class MemoryPart(msgspec.Struct, frozen=True):
    """`kind`: weights, running (context of requests), pinned, kept (for reuse), spare (context nobody uses), saved
    (context in ordinary memory), engine, server, others, free."""

    kind: str
    num_bytes: int
    source: str | None = None  # whose, of what runs


class MemoryMap(msgspec.Struct, frozen=True):
    """What the model's device holds: its parts together are all of it."""

    where: str  # GPU | RAM
    total_bytes: int
    parts: list[MemoryPart]


class MemoryStatus(msgspec.Struct, frozen=True):
    model_bytes: int
    kv_bytes: int
    engine_rss_bytes: int
    server_rss_bytes: int
    total_bytes: int
    available_bytes: int
    gpu: GPUStatus | None


class KVStatus(msgspec.Struct, frozen=True):
    """In tokens. `kept`, of those that are used, give way at once: they wait to be used again."""

    used: int
    total: int
    kept: int = 0
    host_bytes: int = 0  # of ordinary memory, with what gave way and is likely to come back


class PinStatus(msgspec.Struct, frozen=True):
    """`state`: kept, waiting or refused; then `problem` says why."""

    name: str
    source: str
    num_tokens: int
    state: str
    problem: str | None = None


class BatchStatus(msgspec.Struct, frozen=True):
    """The last step, and the ceilings of every step."""

    mode: str
    step: int
    num_running: int
    num_waiting: int
    max_num_seqs: int
    num_decode_tokens: int
    num_prefill_tokens: int
    max_num_batched_tokens: int
    step_s: float
    host_s: float
    predicted_s: float = 0.0


class PolicyStatus(msgspec.Struct, frozen=True):
    mode: str
    chunked_prefill: bool
    max_chunk_tokens: int
    auth: str


class ClassStatus(msgspec.Struct, frozen=True):
    name: str
    weight: float
    running: int
    waiting: int
    max_waiting: int
    queue_timeout_s: float
    ttft_target_s: float | None = None
    itl_target_s: float | None = None


class ShareStatus(msgspec.Struct, frozen=True, rename={"fairness_class": "class"}):
    """What a source was served lately of all that was served, and what it is due when all of them ask: 0 to 1."""

    source: str
    fairness_class: str
    served: float
    due: float


class RequestProgress(msgspec.Struct, frozen=True, rename={"fairness_class": "class"}):
    id: str
    source: str
    fairness_class: str
    status: str  # waiting | running | preempted
    wait_reason: str | None
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    age_s: float
    text: str | None = None  # the end of what was written so far, of a source whose settings show it
    num_step_tokens: int = 0  # of it, in the last step
    expected_wait_s: float | None = None  # of one that waits; None: not known


class InTheWay(msgspec.Struct, frozen=True, rename={"fairness_class": "class"}):
    """A source's requests ran while another one waited or was parked (`ahead_s`), and while it ran (`beside_s`)."""

    source: str
    fairness_class: str
    ahead_s: float
    beside_s: float


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True, rename={"fairness_class": "class"}):
    """One that has ended. The four durations together are its life."""

    id: str
    source: str
    fairness_class: str
    api: str
    ended_at: float  # Unix time
    status: int  # of the HTTP answer
    finish_reason: str
    problem: str | None  # what ended it before it was complete
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    queued_s: float
    prefill_s: float
    parked_s: float
    decode_s: float
    wait_reason: str | None
    in_the_way: list[InTheWay]


class BatchProgress(msgspec.Struct, frozen=True):
    """A batch (/v1/batches) with lines to run."""

    id: str
    source: str
    num_lines: int
    num_completed: int
    num_failed: int
    num_running: int
    age_s: float


class TotalsStatus(msgspec.Struct, frozen=True):
    """Since the start of the daemon."""

    finished: int
    rejected: int
    failed: int
    preemptions: int
    out_of_room: int


class ResidencyStatus(msgspec.Struct, frozen=True):
    """What should be (resident, sleeping, yielded), and why. `expires_in_s`: when it leaves if nobody asks."""

    policy: str
    wanted: str
    reason: str
    expires_in_s: float | None = None
    paused: list[str] = []  # classes
    num_loads: int = 0  # since the start of the daemon
    others_bytes: int | None = None  # of the GPU, held by other programs as seen last; None: nobody looks


class SpanStatus(msgspec.Struct, frozen=True):
    """The model was in a state from then on (Unix time), until the next span begins."""

    state: str
    began_at: float


class EventStatus(msgspec.Struct, frozen=True):
    """`kind`: a state, crash, mode or owner. `count`: so many of them in a row, the last one at `at` (Unix time)."""

    at: float
    kind: str
    detail: str
    count: int = 1


class ClassPaceStatus(msgspec.Struct, frozen=True):
    """p95 of each interval, None where nothing was; and over all of them."""

    ttft_s: list[float | None]
    itl_s: list[float | None]
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None


class PaceStatus(msgspec.Struct, frozen=True):
    """Lately, an entry for each interval, the oldest first: tokens read and written, and how long people waited."""

    interval_s: float
    last_s: float  # how much of the last interval is over
    read: list[int]
    written: list[int]
    classes: dict[str, ClassPaceStatus]


class Status(msgspec.Struct, frozen=True):
    version: str
    state: str
    load: LoadStatus | None
    failure: str | None
    uptime_s: float
    model: ModelStatus
    memory: MemoryStatus
    kv: KVStatus
    batch: BatchStatus
    policy: PolicyStatus
    classes: list[ClassStatus]
    requests: list[RequestProgress]
    totals: TotalsStatus
    residency: ResidencyStatus
    pins: list[PinStatus] = []
    batches: list[BatchProgress] = []  # those with lines to run
    rules: list[dict[str, str]] = []  # who is asking: by what, which value, what source, in what class
    startup: StartupStatus | None = None
    notes: list[str] = []  # what the owner should know, although everything goes on
    now: float = 0.0  # Unix time, by the server's clock
    memory_map: MemoryMap | None = None
    shares: list[ShareStatus] = []  # the most served first
    pace: PaceStatus | None = None
    history: list[SpanStatus] = []  # the oldest first
    events: list[EventStatus] = []  # the latest first
    recent: list[RecentRequest] = []  # the latest first
