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
from homeai.server.service import Service
from homeai.server.warmup import Pin
from homeai.status import (
    BatchStatus,
    ClassStatus,
    GPUStatus,
    KVStatus,
    LoadStatus,
    MemoryStatus,
    ModelStatus,
    PinStatus,
    PolicyStatus,
    RequestProgress,
    ResidencyStatus,
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
    ready = service.supervisor.ready
    progress = service.supervisor.progress
    scheduler = service.config.scheduler
    return Status(
        version=__version__,
        state=service.supervisor.state,
        load=LoadStatus(progress.stage, progress.fraction) if progress else None,
        failure=service.supervisor.failure,
        uptime_s=time.monotonic() - _started_at,
        model=_model(service),
        memory=_memory(service),
        kv=KVStatus(
            step.kv_used,
            ready.num_kv_cells if ready else scheduler.kv_cells,
            step.num_cached_tokens,
            step.host_bytes,
        ),
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
        requests=[_request(service, generation) for generation in live[:MAX_REQUESTS]],
        totals=msgspec.convert(service.books.totals, TotalsStatus, from_attributes=True),
        residency=_residency(service),
        pins=[_pin(pin) for pin in service.supervisor.warm_up.pins],
        batches=service.batches.progress() if service.batches else [],
        rules=service.sources.rules(),
        startup=_startup(service),
        notes=service.notes,
    )


def _residency(service: Service) -> ResidencyStatus:
    verdict = service.keeper.verdict()
    return ResidencyStatus(
        policy=service.config.residency.policy,
        wanted=verdict.aim,
        reason=verdict.reason,
        expires_in_s=service.keeper.expires_in_s,
        paused=sorted(service.client.paused),
        num_loads=service.supervisor.num_loads,
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
        ClassStatus(name, c.weight, running[name], waiting[name], c.max_waiting, c.queue_timeout_s)
        for name, c in service.config.classes.items()
    ]


def _pin(pin: Pin) -> PinStatus:
    state = "refused" if pin.problem is not None else "kept" if pin.is_kept else "waiting"
    return PinStatus(pin.name, pin.source, pin.num_tokens, state, pin.problem)


def _request(service: Service, generation: Generation) -> RequestProgress:
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
