"""Reads a server while a trace is played: its own figures where it tells them, its processes where they run here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

import httpx
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

from homeai.evaluation.bench.power import meter
from homeai.evaluation.bench.records import Counters, Reading
from homeai.hardware import MachineProbe
from homeai.status import Status

PERIOD_S: Final = 0.5
_status = msgspec.json.Decoder(Status)

# Ours, and vLLM's where it counts the same.
COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "num_preemptions": ("homeai_num_preemptions_total", "vllm:num_preemptions_total"),
    "num_evictions": ("homeai_prefix_cache_evictions_total",),
    "num_out_of_room": ("homeai_out_of_room_total",),
    "num_recomputed_tokens": ("homeai_recomputed_tokens_total",),
    "num_idle_rows": ("homeai_idle_row_steps_total",),
    "busy_s": ("homeai_engine_step_seconds_sum",),
}
QUEUE: Final = ("homeai_request_queue_time_seconds_bucket", "vllm:request_queue_time_seconds_bucket")

Buckets = dict[float, float]  # upper bound to how many were at most so long


class Watch:
    """`is_homeai`: it has /api/status. `pid`: of the server, when it runs on this machine."""

    def __init__(self, http: httpx.AsyncClient, *, is_homeai: bool, pid: int | None) -> None:
        self.readings: list[Reading] = []
        self.counters = Counters()
        self._http = http
        self._is_homeai = is_homeai
        self._pid = pid
        self._probe = MachineProbe() if pid is not None else None
        self._meter = meter() if pid is not None else None
        self._start = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """`readings` fill meanwhile, `counters` are there afterwards."""
        before, loads, joules = await self._series(), await self._num_loads(), self._joules()
        self._start = perf_counter()
        psutil.cpu_percent()
        task = asyncio.create_task(self._read_on())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            after, loads_now, joules_now = await self._series(), await self._num_loads(), self._joules()
            grown = counted(before, after)
            grown |= {"num_loads": _difference(loads, loads_now), "joules": _difference(joules, joules_now)}
            self.counters = msgspec.convert(grown, Counters)

    async def _read_on(self) -> None:
        while True:
            self.readings.append(await self._read())
            await asyncio.sleep(PERIOD_S)

    async def _read(self) -> Reading:
        status = await self._status()
        reading = self._machine()
        if status is None:
            return reading
        gpu, memory = status.memory.gpu, status.memory
        return msgspec.structs.replace(
            reading,
            num_running=status.batch.num_running,
            num_waiting=status.batch.num_waiting,
            kv_used=status.kv.used,
            kv_kept=status.kv.kept,
            kv_total=status.kv.total,
            rss_bytes=memory.engine_rss_bytes + memory.server_rss_bytes,
            gpu_bytes=gpu.used_bytes if gpu else reading.gpu_bytes,
            utilisation=gpu.utilisation if gpu else reading.utilisation,
            num_preemptions=status.totals.preemptions,
        )

    def _machine(self) -> Reading:
        at = perf_counter() - self._start
        if self._probe is None or self._pid is None:
            return Reading(at=at)
        gpu = self._probe.gpu()
        return Reading(
            at=at,
            rss_bytes=sum(self._probe.rss_bytes(pid) for pid in family(self._pid)),
            gpu_bytes=gpu.used_bytes if gpu else None,
            utilisation=gpu.utilisation if gpu else psutil.cpu_percent() / 100,
        )

    async def _status(self) -> Status | None:
        """None where there is none, or not in time."""
        if not self._is_homeai:
            return None
        try:
            response = await self._http.get("/api/status", timeout=10)
            return _status.decode(response.content)
        except (httpx.HTTPError, msgspec.MsgspecError):
            return None

    async def _num_loads(self) -> int | None:
        status = await self._status()
        return status.residency.num_loads if status else None

    async def _series(self) -> dict[str, Buckets]:
        try:
            response = await self._http.get("/metrics", timeout=10)
            return series(response.text) if response.status_code == 200 else {}
        except httpx.HTTPError:
            return {}

    def _joules(self) -> float | None:
        return self._meter[1]() if self._meter else None


def series(text: str) -> dict[str, Buckets]:
    """Of Prometheus' text, the series that are read here: name to values by `le` (0 for what has none), summed."""
    wanted = {name for names in COUNTERS.values() for name in names} | set(QUEUE)
    found: dict[str, Buckets] = {}
    for family_ in text_string_to_metric_families(text):
        for sample in family_.samples:
            if sample.name in wanted:
                buckets = found.setdefault(sample.name, {})
                bound = float(sample.labels.get("le", 0.0))
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return found


def counted(before: Mapping[str, Buckets], after: Mapping[str, Buckets]) -> dict[str, float | None]:
    """How much each counter grew, as fields of `Counters`."""
    grown: dict[str, float | None] = {}
    for field, names in COUNTERS.items():
        name = next((name for name in names if name in after), None)
        if name is not None:
            value = after[name].get(0.0, 0.0) - before.get(name, {}).get(0.0, 0.0)
            grown[field] = value if field == "busy_s" else round(value)
    queue = next((name for name in QUEUE if name in after), None)
    if queue is not None:
        earlier = before.get(queue, {})
        p95 = quantile({bound: count - earlier.get(bound, 0.0) for bound, count in after[queue].items()}, 0.95)
        if p95 is not None:
            grown["queue_p95_s"] = p95
    return grown


def quantile(buckets: Buckets, q: float) -> float | None:
    """Within a bucket on a straight line, as Prometheus does; the last bound for what lies beyond it."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= q * total:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (q * total - below) / max(buckets[bound] - below, 1e-12)
        lower, below = bound, buckets[bound]
    return lower


def family(pid: int) -> list[int]:
    """It and its descendants."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def listener(port: int) -> int | None:
    """The process that listens on this port of this machine, if it is one of ours."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    listening = (c for c in connections if c.status == psutil.CONN_LISTEN)
    return next((c.pid for c in listening if getattr(c.laddr, "port", None) == port), None)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
