"""What /metrics tells of the daemon as it is now: the status in Prometheus' words. Looked at when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from homeai.metrics.series import PREFIX
from homeai.request import WaitReason
from homeai.server.service import Service
from homeai.server.status import snapshot
from homeai.server.supervisor import State
from homeai.status import Status


def families(service: Service) -> Iterator[Metric]:
    status, is_resident = snapshot(service), service.supervisor.ready is not None
    yield from _queue(status)
    yield from _cache(status, is_resident=is_resident)
    yield from _memory(status)
    yield from _residency(status, is_resident=is_resident)
    yield _counter("engine_restarts", "Engines that died and came back", service.supervisor.num_restarts)


def _queue(status: Status) -> Iterator[Metric]:
    classes, requests, batch = status.classes, status.requests, status.batch
    parked = Counter(request.fairness_class for request in requests if request.status == "preempted")
    reasons = Counter(request.wait_reason for request in requests)
    running = {c.name: c.running - parked[c.name] for c in classes}
    yield _gauge_by("num_requests_running", "Requests in the batch", "class", running)
    yield _gauge_by(
        "num_requests_waiting", "Requests that wait for the batch", "class", {c.name: c.waiting for c in classes}
    )
    yield _gauge_by(
        "num_requests_parked", "Requests that wait to go on", "class", {c.name: parked[c.name] for c in classes}
    )
    yield _gauge_by(
        "num_requests_waiting_by_reason", "Why they wait", "reason", {reason: reasons[reason] for reason in WaitReason}
    )
    yield _gauge_by("max_num_requests_waiting", "How many may wait", "class", {c.name: c.max_waiting for c in classes})
    yield _gauge_by("class_weight", "What a class weighs", "class", {c.name: c.weight for c in classes})
    yield _gauge_by(
        "class_paused",
        "1 while the owner has a class wait",
        "class",
        {c.name: c.name in status.residency.paused for c in classes},
    )
    yield _gauge("max_num_seqs", "Requests that the batch has room for", batch.max_num_seqs)
    yield _gauge("max_num_batched_tokens", "Tokens that a step has room for", batch.max_num_batched_tokens)
    num_running = sum(each.num_running for each in status.batches)
    num_left = sum(each.num_lines - each.num_completed - each.num_failed for each in status.batches)
    lines = {"running": num_running, "waiting": num_left - num_running}
    yield _gauge_by("batch_lines", "Lines of files for the background", "state", lines)


def _cache(status: Status, *, is_resident: bool) -> Iterator[Metric]:
    kv = status.kv
    total = kv.total if is_resident else 0
    yield _gauge("kv_cache_usage_perc", "KV cells that requests run in; 1 is all", _part(kv.used - kv.kept, total))
    yield _gauge("kv_cache_used_tokens", "KV cells in use, kept ones too", kv.used)
    yield _gauge("kv_cache_kept_tokens", "KV cells that nobody runs in, kept for reuse", kv.kept)
    yield _gauge("kv_cache_size_tokens", "KV cells there are", total)
    yield _gauge("host_cache_bytes", "Host memory that holds saved KV", kv.host_bytes)


def _memory(status: Status) -> Iterator[Metric]:
    """Without a GPU its families are empty."""
    memory, gpu = status.memory, status.memory.gpu
    resident = {"server": memory.server_rss_bytes, "engine": memory.engine_rss_bytes}
    yield _gauge_by("resident_memory_bytes", "Ordinary memory that a process holds", "process", resident)
    yield _gauge("model_weights_bytes", "The model's weights", memory.model_bytes)
    yield _gauge("kv_cache_bytes", "All KV cells", memory.kv_bytes)
    yield _gauge("machine_memory_bytes", "Memory of this machine", memory.total_bytes)
    yield _gauge("machine_memory_available_bytes", "What programs may still take of it", memory.available_bytes)
    yield _gauge("gpu_memory_bytes", "Memory of the GPU", gpu.total_bytes if gpu else None)
    yield _gauge("gpu_memory_used_bytes", "What all programs hold of it", gpu.used_bytes if gpu else None)
    yield _gauge("gpu_utilisation_ratio", "Part of the time in which it computed", gpu.utilisation if gpu else None)


def _residency(status: Status, *, is_resident: bool) -> Iterator[Metric]:
    model = status.model
    yield _gauge("model_resident", "1 while the model is loaded and serves", is_resident)
    yield _gauge_by("model_state", "1 for the state it is in", "state", {s: s == status.state for s in State})
    yield _gauge("model_load_seconds", "How long what is resident took to load", model.load_s)
    yield _counter("model_loads", "How often the model was loaded", status.residency.num_loads)
    yield _info("model_info", "What is resident", {"model": model.name or "", "device": model.device or ""})
    yield _info("build_info", "What serves it", {"version": status.version})


# ---- families --------------------------------------------------------------------------------------------


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """None: a family without a sample."""
    return GaugeMetricFamily(PREFIX + name, text, value)


def _gauge_by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value)


def _info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
