"""What the daemon noticed of itself in the last quarter of an hour, for `homeai doctor`: queue, steps, stalls, lag.

One sample a second, ten of them a slice, ninety slices. The event loop is the only writer; nothing here changes what
is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from homeai.messages import StepStats
from homeai.request import WaitReason
from homeai.vitals import EngineIO, Slice, Vitals

if TYPE_CHECKING:
    from homeai.server.service import Service

SAMPLE_S: Final = 1.0
SLICE_SAMPLES: Final = 10
NUM_SLICES: Final = 90

SECTIONS: Final = {"data_dir", "model", "scheduler", "classes", "residency", "ledger"}
SOURCE_FIELDS: Final = {"name", "class", "max_running", "kv_cap", "private", "volatile"}


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stand. `num_inside`: requests that a resident engine has; `reasons`: waiting ones by reason;
    `gpu_load` None: no GPU, or nobody asks."""

    num_running: int
    num_waiting: int
    num_inside: int
    reasons: Counter[str]
    lag_s: float = 0.0
    gpu_load: float | None = None


@dataclass(slots=True)
class _Open:
    """A slice that still grows."""

    at: float
    samples: list[Sample] = field(default_factory=list)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    max_kv_used: int = 0

    def closed(self) -> Slice:
        samples, count = self.samples, max(1, len(self.samples))
        reasons: Counter[str] = Counter()
        for sample in samples:
            reasons.update(sample.reasons)
        loads = [sample.gpu_load for sample in samples if sample.gpu_load is not None]
        return Slice(
            at=self.at,
            num_samples=len(samples),
            num_busy_samples=sum(s.num_inside > 0 for s in samples),
            running=sum(s.num_running for s in samples) / count,
            waiting=sum(s.num_waiting for s in samples) / count,
            max_running=max((s.num_running for s in samples), default=0),
            max_waiting=max((s.num_waiting for s in samples), default=0),
            max_kv_used=self.max_kv_used,
            reasons={reason: num * SAMPLE_S for reason, num in reasons.items()},
            step_s=self.seconds["step"],
            host_s=self.seconds["host"],
            num_steps=self.counts["steps"],
            num_prefill_tokens=self.counts["prefill"],
            num_decode_tokens=self.counts["decode"],
            num_preemptions=self.counts["preemptions"],
            num_out_of_room=self.counts["out_of_room"],
            num_evictions=self.counts["evictions"],
            max_lag_s=max((s.lag_s for s in samples if s.num_inside), default=0.0),
            gpu_load=sum(loads) / len(loads) if loads else None,
        )


class Recorder:
    """`stepped` for every step, `sample` once a second; `slices` is what came of it. `now` is Unix time."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._closed: deque[Slice] = deque(maxlen=NUM_SLICES)
        self._open = _Open(now())

    @property
    def slices(self) -> list[Slice]:
        return [*self._closed, self._open.closed()]

    def stepped(self, stats: StepStats) -> None:
        current = self._open
        if stats.num_decode_tokens + stats.num_prefill_tokens:
            current.seconds["step"] += stats.step_s
            current.seconds["host"] += stats.host_s
            current.counts.update(steps=1, prefill=stats.num_prefill_tokens, decode=stats.num_decode_tokens)
        current.max_kv_used = max(current.max_kv_used, stats.kv_used - stats.num_cached_tokens)
        current.counts.update(
            preemptions=stats.num_preemptions, evictions=stats.num_evictions, out_of_room=int(stats.out_of_room)
        )

    def sample(self, sample: Sample) -> None:
        current = self._open
        current.samples.append(sample)
        if len(current.samples) >= SLICE_SAMPLES:
            self._closed.append(current.closed())
            self._open = _Open(self._now())


async def record(service: Service) -> None:
    """Takes the samples, as long as the daemon runs."""
    loop = asyncio.get_running_loop()
    due_at = loop.time() + SAMPLE_S
    while True:
        await asyncio.sleep(max(0.0, due_at - loop.time()))
        lag_s = max(0.0, loop.time() - due_at)
        due_at = loop.time() + SAMPLE_S
        service.recorder.sample(sample_of(service, lag_s))


def sample_of(service: Service, lag_s: float) -> Sample:
    client = service.client
    reasons: Counter[str] = Counter()
    num_running = num_inside = 0
    live = client.live
    for generation in live:
        progress = generation.progress
        if client.waits(generation.add.request_id):
            is_paused = generation.add.fairness_class in client.paused
            reasons[WaitReason.PAUSED if is_paused else WaitReason.NOT_RESIDENT] += 1
        elif generation.started_at is not None and (progress is None or progress.status != "preempted"):
            num_running += 1
            num_inside += 1
        else:
            num_inside += 1
            if progress is not None and progress.wait_reason is not None:
                reasons[progress.wait_reason] += 1
    gpu = service.probe.gpu() if live else None
    load = gpu.utilisation if gpu else None
    return Sample(num_running, len(live) - num_running, num_inside, reasons, lag_s, load)


def vitals(service: Service) -> Vitals:
    supervisor, text = service.supervisor, service.text
    tokenising = text.tokenising if text else None
    return Vitals(
        pid=os.getpid(),
        engine_pid=supervisor.engine_pid,
        num_restarts=supervisor.num_restarts,
        model_path=str(service.model_path),
        settings=_settings(service),
        slices=service.recorder.slices,
        tokenised=list(tokenising.latest) if tokenising else [],
        num_tokenised=tokenising.num_texts if tokenising else 0,
        tokenise_s=tokenising.worked_s if tokenising else 0.0,
        beginnings=service.beginnings.status(),
        engine_io=engine_io(supervisor.engine_pid) if supervisor.engine_pid else None,
    )


def _settings(service: Service) -> dict[str, object]:
    """Nobody's keys, addresses or texts are among them."""
    config = service.config
    settings: dict[str, object] = config.model_dump(mode="json", by_alias=True, include=SECTIONS)
    settings["sources"] = [
        {key: value for key, value in source.model_dump(mode="json", by_alias=True).items() if key in SOURCE_FIELDS}
        for source in config.sources
    ]
    return settings


def engine_io(pid: int) -> EngineIO:
    """proc_pid_io(5), and field 12 of proc_pid_stat(5)."""
    read_bytes = num_faults = None
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        read_bytes = int(dict(line.split(": ", 1) for line in lines)["read_bytes"])
    with contextlib.suppress(OSError, IndexError, ValueError):
        num_faults = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])
    return EngineIO(read_bytes, num_faults)
