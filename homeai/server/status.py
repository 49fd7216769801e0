"""What the status page, `homeai status` and /api/status show: one snapshot, built from the parts."""

from __future__ import annotations

import time
from collections import Counter

import msgspec

from homeai import __version__
from homeai.request import WaitReason
from homeai.server.client import Generation
from homeai.server.service import Service
from homeai.server.supervisor import State

Value = dict[str, object]
MAX_REQUESTS = 200

_started_at = time.monotonic()


def status(service: Service) -> Value:
    """JSON-ready. Reading it changes nothing."""
    config, step = service.config, service.client.last_step
    live = service.client.live
    scheduler = config.scheduler
    return {
        "version": __version__,
        "state": service.supervisor.state,
        "load": msgspec.to_builtins(service.supervisor.progress),
        "failure": service.supervisor.failure,
        "uptime_s": time.monotonic() - _started_at,
        "model": _model(service),
        "memory": _memory(service),
        "kv": {"used": step.kv_used if step else 0, "total": scheduler.kv_cells},
        "batch": {
            "mode": step.mode if step else ("continuous" if scheduler.mode == "continuous" else "single"),
            "step": step.step if step else 0,
            "num_running": step.num_running if step else 0,
            "num_waiting": step.num_waiting if step else 0,
            "max_num_seqs": scheduler.max_num_seqs,
            "num_decode_tokens": step.num_decode_tokens if step else 0,
            "num_prefill_tokens": step.num_prefill_tokens if step else 0,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "step_s": step.step_s if step else 0.0,
            "host_s": step.host_s if step else 0.0,
        },
        "policy": {
            "mode": scheduler.mode,
            "chunked_prefill": scheduler.chunked_prefill,
            "max_chunk_tokens": scheduler.max_chunk_tokens,
            "auth": config.server.auth,
        },
        "classes": _classes(service, live),
        "requests": [_request(g, service.supervisor.state) for g in live[:MAX_REQUESTS]],
        "totals": msgspec.to_builtins(service.books.totals),
    }


def _model(service: Service) -> Value:
    text, ready = service.text, service.supervisor.ready
    path = service.config.model.path
    return {
        "name": text.name if text else None,
        "file": path.name if path else None,
        "size_bytes": ready.model_bytes if ready else None,
        "device": ready.device if ready else None,
        "max_model_len": text.max_model_len if text else None,
        "template": text.template_kind if text else None,
        "load_s": ready.load_s if ready else None,
    }


def _memory(service: Service) -> Value:
    ready, pid = service.supervisor.ready, service.supervisor.engine_pid
    memory = service.probe.memory()
    return {
        "model_bytes": ready.model_bytes if ready else 0,
        "kv_bytes": ready.kv_bytes if ready else 0,
        "engine_rss_bytes": service.probe.rss_bytes(pid) if pid else 0,
        "server_rss_bytes": service.probe.rss_bytes(),
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "gpu": msgspec.to_builtins(service.probe.gpu()),
    }


def _classes(service: Service, live: list[Generation]) -> list[Value]:
    running = Counter(g.add.fairness_class for g in live if g.started_at is not None)
    waiting = Counter(g.add.fairness_class for g in live if g.started_at is None)
    return [
        {
            "name": name,
            "weight": fairness_class.weight,
            "running": running[name],
            "waiting": waiting[name],
            "max_waiting": fairness_class.max_waiting,
            "queue_timeout_s": fairness_class.queue_timeout_s,
        }
        for name, fairness_class in service.config.classes.items()
    ]


def _request(generation: Generation, state: State) -> Value:
    add, progress = generation.add, generation.progress
    wait_reason = progress.wait_reason if progress else None
    if state is not State.RESIDENT and generation.started_at is None:
        wait_reason = WaitReason.NOT_RESIDENT
    return {
        "id": add.request_id,
        "source": add.source,
        "class": add.fairness_class,
        "status": progress.status if progress else "waiting",
        "wait_reason": wait_reason,
        "num_prompt_tokens": len(add.prompt_token_ids),
        "num_computed_tokens": progress.num_computed_tokens if progress else 0,
        "num_output_tokens": generation.num_output_tokens,
        "max_tokens": add.sampling.max_tokens,
        "age_s": time.monotonic() - add.arrival_at,
    }
