"""One snapshot of the daemon, built from its parts. Reading it changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

import msgspec

from homeai import __version__
from homeai.messages import StepStats
from homeai.request import Mode, RequestStatus, WaitReason
from homeai.server.generation import Generation
from homeai.server.memory_map import memory_map
from homeai.server.service import Service
from homeai.server.shares import shares_of
from homeai.server.warmup import Pin
from homeai.status import (
    BatchStatus,
    ClassStatus,
    GPUStatus,
    KVStatus,
    LoadStatus,
    MemoryMap,
    MemoryStatus,
    ModelStatus,
    PinStatus,
    PolicyStatus,
    RequestProgress,
    ResidencyStatus,
    ShareStatus,
    StartupStatus,
    Status,
    TotalsStatus,
)

MAX_REQUESTS: Final = 200
NO_STEP: Final = StepStats(0, Mode.SINGLE, 0, 0, 0)

_started_at: Final = time.monotonic()


def snapshot(service: Service) -> Status:
    step = service.client.last_step or NO_STEP
    live = service.client.live
    memory, kv = _memory(service), _kv(service, step)
    progress = service.supervisor.progress
    scheduler = service.config.scheduler
    return Status(
        version=__version__,
        state=service.supervisor.state,
        load=LoadStatus(progress.stage, progress.fraction) if progress else None,
        failure=service.supervisor.failure,
        uptime_s=time.monotonic() - _started_at,
        model=_model(service),
        memory=memory,
        kv=kv,
        batch=BatchStatus(
            mode=step.mode,
            step=step.step,
            num_running=step.num_running,
            num_waiting=step.num_waiting,
            max_num_seqs=scheduler.max_num_seqs,
            num_decode_tokens=step.num_decode_tokens,
            num_prefill_tokens=step.num_prefill_tokens,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            step_s=step.step_s,
            host_s=step.host_s,
            predicted_s=step.predicted_s,
        ),
        policy=PolicyStatus(
            scheduler.mode, scheduler.chunked_prefill, scheduler.max_chunk_tokens, service.config.server.auth
        ),
        classes=_classes(service, live),
        requests=_requests(service, live[:MAX_REQUESTS]),
        totals=msgspec.convert(service.books.totals, TotalsStatus, from_attributes=True),
        residency=_residency(service),
        pins=[_pin(pin) for pin in service.supervisor.warm_up.pins],
        batches=service.batches.progress() if service.batches else [],
        rules=service.sources.rules(),
        startup=_startup(service),
        notes=service.notes,
        now=time.time(),
        memory_map=_memory_map(service, memory, kv, live),
        shares=_shares(service, live),
        pace=service.lookback.pace.look(time.monotonic()),
        history=service.lookback.history.spans,
        events=service.lookback.history.events,
        recent=service.lookback.recent.requests,
    )


def _kv(service: Service, step: StepStats) -> KVStatus:
    ready = service.supervisor.ready
    total = ready.num_kv_cells if ready else service.config.scheduler.kv_cells
    return KVStatus(step.kv_used, total, step.num_cached_tokens, step.host_bytes)


def _memory_map(service: Service, memory: MemoryStatus, kv: KVStatus, live: list[Generation]) -> MemoryMap:
    cells: Counter[str] = Counter()
    for generation in live:
        if generation.progress is not None:
            cells[generation.add.source] += generation.progress.num_kv_cells
    return memory_map(
        memory,
        kv,
        cells,
        is_on_gpu=service.supervisor.device == "cuda",
        has_pins=any(pin.is_kept for pin in service.supervisor.warm_up.pins),
        others_bytes=service.keeper.others_bytes,
    )


def _shares(service: Service, live: list[Generation]) -> list[ShareStatus]:
    weights = {name: c.weight for name, c in service.config.classes.items()}
    return shares_of(service.client.served, weights, {(g.add.fairness_class, g.add.source) for g in live})


def _residency(service: Service) -> ResidencyStatus:
    verdict = service.keeper.verdict()
    return ResidencyStatus(
        policy=service.config.residency.policy,
        wanted=verdict.aim,
        reason=verdict.reason,
        expires_in_s=service.keeper.expires_in_s,
        paused=sorted(service.client.paused),
        num_loads=service.supervisor.num_loads,
        others_bytes=service.keeper.others_bytes,
    )


def _model(service: Service) -> ModelStatus:
    text, ready = service.text, service.supervisor.ready
    return ModelStatus(
        name=text.name if text else None,
        file=service.model_file,
        size_bytes=ready.model_bytes if ready else None,
        device=ready.device if ready else None,
        max_model_len=ready.max_model_len if ready else text.max_model_len if text else None,
        template=text.template_kind if text else None,
        load_s=ready.load_s if ready else None,
    )


def _startup(service: Service) -> StartupStatus | None:
    startup, text = service.supervisor.startup, service.text
    if startup is None:
        return None
    return StartupStatus(startup.total_s, dict(startup.parts_s), text.load_s if text else None)


def _memory(service: Service) -> MemoryStatus:
    ready, pid = service.supervisor.ready, service.supervisor.engine_pid
    memory, gpu = service.probe.memory(), service.probe.gpu()
    return MemoryStatus(
        model_bytes=ready.model_bytes if ready else 0,
        kv_bytes=ready.kv_bytes if ready else 0,
        engine_rss_bytes=service.probe.rss_bytes(pid) if pid else 0,
        server_rss_bytes=service.probe.rss_bytes(),
        total_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
        gpu=msgspec.convert(gpu, GPUStatus, from_attributes=True) if gpu else None,
    )


def _classes(service: Service, live: list[Generation]) -> list[ClassStatus]:
    running = Counter(g.add.fairness_class for g in live if g.started_at is not None)
    waiting = Counter(g.add.fairness_class for g in live if g.started_at is None)
    return [
        ClassStatus(
            name,
            c.weight,
            running[name],
            waiting[name],
            c.max_waiting,
            c.queue_timeout_s,
            c.ttft_target_s,
            c.itl_target_s,
        )
        for name, c in service.config.classes.items()
    ]


def _pin(pin: Pin) -> PinStatus:
    state = "refused" if pin.problem is not None else "kept" if pin.is_kept else "waiting"
    return PinStatus(pin.name, pin.source, pin.num_tokens, state, pin.problem)


def _requests(service: Service, live: list[Generation]) -> list[RequestProgress]:
    """In the order of their arrival, which is that of each class's queue."""
    now = time.monotonic()
    places: Counter[str] = Counter()
    requests = []
    for generation in live:
        name, wait_s = generation.add.fairness_class, None
        if generation.started_at is None:
            places[name] += 1
            wait_s = service.client.door.expected_wait_s(name, now, places[name])
        requests.append(_request(service, generation, wait_s))
    return requests


def _request(service: Service, generation: Generation, expected_wait_s: float | None) -> RequestProgress:
    add, progress = generation.add, generation.progress
    is_outside = service.client.waits(add.request_id)
    status = _status(generation, is_outside=is_outside)
    return RequestProgress(
        id=add.request_id,
        source=add.source,
        fairness_class=add.fairness_class,
        status=status.name.lower(),
        wait_reason=_wait_reason(service, generation, status),
        num_prompt_tokens=len(add.prompt_token_ids),
        num_computed_tokens=progress.num_computed_tokens if progress else 0,
        num_output_tokens=generation.num_output_tokens,
        max_tokens=add.sampling.max_tokens,
        age_s=time.monotonic() - add.arrival_at,
        text=generation.shown_text,
        num_step_tokens=progress.num_step_tokens if progress and status is RequestStatus.RUNNING else 0,
        expected_wait_s=expected_wait_s,
    )


def _wait_reason(service: Service, generation: Generation, status: RequestStatus) -> WaitReason | None:
    if service.supervisor.ready is None:
        return WaitReason.NOT_RESIDENT
    if service.client.waits(generation.add.request_id):
        is_paused = generation.add.fairness_class in service.client.paused
        return WaitReason.PAUSED if is_paused else WaitReason.NOT_RESIDENT
    if generation.progress is None or status is RequestStatus.RUNNING:
        return None
    return generation.progress.wait_reason


def _status(generation: Generation, *, is_outside: bool) -> RequestStatus:
    """Starts are told at once, progress only now and then."""
    if generation.started_at is None:
        return RequestStatus.WAITING
    is_parked = is_outside or (generation.progress is not None and generation.progress.status == "preempted")
    return RequestStatus.PREEMPTED if is_parked else RequestStatus.RUNNING
