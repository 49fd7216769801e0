"""What a trace is played to: a server over HTTP, or the scheduler with a simulated model."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import httpx

from homeai.config import Config
from homeai.errors import HomeAIError
from homeai.evaluation import simulate, simulator
from homeai.evaluation.bench import client
from homeai.evaluation.bench.client import Manners, Progress
from homeai.evaluation.bench.conditions import FORCED, Conditions
from homeai.evaluation.bench.dialects import DIALECTS, Wording
from homeai.evaluation.bench.identity import Identity, identify
from homeai.evaluation.bench.records import CallRecord, Counters, Ending, Play, Reading
from homeai.evaluation.bench.trace import Trace, arrivals_of
from homeai.evaluation.bench.watch import Watch, listener
from homeai.evaluation.cost_model import StepCost
from homeai.evaluation.records import RequestRecord, Run
from homeai.request import FinishReason

READING_EVERY_S: Final = 0.5
LEDGER_PATIENCE_S: Final = 2.0


class Target(Protocol):
    @property
    def conditions(self) -> Conditions: ...

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of weights, KV cache and so on, as it tells; empty where it does not."""
        ...

    async def play(self, trace: Trace, salt: str, on_end: Progress = ...) -> Play: ...


# ---- a server ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asking:
    """How a server is asked. `api` None: Ollama's where it is Ollama, else OpenAI's chat. `natural`: answers end where
    the model ends them."""

    api: str | None = None
    model: str | None = None
    key: str | None = None
    natural: bool = False
    manners: Manners = field(default_factory=Manners)


class Server:
    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        identity: Identity,
        asking: Asking,
        *,
        settings: dict[str, str],
        pid: int | None,
        ledger: Path | None,
    ) -> None:
        self._http = http
        self._identity = identity
        self._asking = asking
        self._pid = pid
        self._ledger = ledger
        is_ollama = identity.server.startswith("Ollama")
        self._dialect = DIALECTS[asking.api or ("ollama" if is_ollama else "chat")]
        self._forces_length = identity.forces_length and not asking.natural and self._dialect.name != "ollama"
        self._settings = settings

    @property
    def conditions(self) -> Conditions:
        known = self._identity
        return Conditions(
            server=known.server,
            model=known.model.rpartition("/")[2] if known.model.startswith("/") else known.model,
            model_hash=known.model_hash,
            tokenizer=known.tokenizer,
            quantisation=known.quantisation,
            context=known.context,
            hardware=known.hardware,
            api=self._dialect.path,
            lengths=FORCED if self._forces_length else "as the model ends",
            settings=known.settings | self._settings,
        )

    @property
    def load_s(self) -> float | None:
        """How long homeai took to load its model."""
        status = self._identity.status
        return status.model.load_s if status else None

    @property
    def memory(self) -> dict[str, int]:
        status = self._identity.status
        if status is None:
            return {}
        return {"weights": status.memory.model_bytes, "kv": status.memory.kv_bytes}

    async def play(self, trace: Trace, salt: str, on_end: Progress = lambda record: None) -> Play:
        wording = Wording(self._identity.model, salt, self._forces_length)
        watch = Watch(self._http, is_homeai=self._identity.status is not None, pid=self._pid)
        async with watch.watching():
            records, wall_s = await client.play(self._http, self._dialect, wording, trace, self._asking.manners, on_end)
        if self._ledger is not None:
            await _fill_queue_times(records, self._ledger.absolute().as_uri(), salt)
        return Play(
            records=records,
            readings=watch.readings,
            counters=watch.counters,
            wall_s=max(wall_s, trace.duration_s),
        )


@asynccontextmanager
async def connected(
    url: str,
    asking: Asking,
    *,
    settings: dict[str, str] | None = None,
    pid: int | None = None,
    ledger: Path | None = None,
) -> AsyncIterator[Server]:
    """A server that answers at `url`. Raises `HomeAIError` when none does."""
    headers = {"authorization": f"Bearer {asking.key}"} if asking.key else {}
    base, timeout = url.rstrip("/").removesuffix("/v1"), httpx.Timeout(None, connect=10)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    try:
        http = httpx.AsyncClient(base_url=base, headers=headers, timeout=timeout, limits=limits)
    except httpx.InvalidURL as error:
        raise HomeAIError(f"{url} is no address of a server: {error}") from None
    async with http:
        identity = await identify(http, base, asking.model)
        if pid is None and urlsplit(base).hostname in ("127.0.0.1", "localhost", "::1"):
            pid = listener(urlsplit(base).port or 80)
        yield Server(http, base, identity, asking, settings=settings or {}, pid=pid, ledger=ledger)


async def _fill_queue_times(records: Sequence[CallRecord], ledger_uri: str, salt: str) -> None:
    """Exactly, from the own daemon's ledger, which is written a moment after the answer."""
    query = "SELECT client_request_id, queue_s FROM requests WHERE client_request_id LIKE ?"
    num_wanted = sum(record.ending is Ending.COMPLETED for record in records)
    found: dict[str, float | None] = {}
    for _ in range(round(LEDGER_PATIENCE_S / 0.1)):
        with closing(sqlite3.connect(f"{ledger_uri}?mode=ro", uri=True)) as database:
            found = dict(database.execute(query, [f"bench-{salt}-%"]).fetchall())
        if len(found) >= num_wanted:
            break
        await asyncio.sleep(0.1)
    for record in records:
        record.queue_s = found.get(f"bench-{salt}-{record.index}")


# ---- a simulation --------------------------------------------------------------------------------------


class Simulation:
    """The same scheduler with the same settings on a virtual clock. What the front end refuses is not simulated."""

    def __init__(self, config: Config, cost: StepCost, settings: dict[str, str]) -> None:
        self._cost = cost
        self._scheduler, self._limits = simulate.scheduler_of(config, cost)
        self._settings = settings

    @property
    def conditions(self) -> Conditions:
        return Conditions(
            server="homeai, simulated",
            model="simulated",
            model_hash="none",
            tokenizer="none",
            quantisation="none",
            context=str(self._limits.max_model_len),
            hardware=self._cost.label,
            api="none",
            lengths=FORCED,
            settings=self._settings,
        )

    @property
    def memory(self) -> dict[str, int]:
        return {"kv": self._limits.num_kv_cells * self._limits.kv_bytes_per_token}

    async def play(self, trace: Trace, salt: str, on_end: Progress = lambda record: None) -> Play:
        run = simulator.run(arrivals_of(trace, salt), self._scheduler, self._cost, limits=self._limits)
        records = [_record(trace, index, each) for index, each in enumerate(run.requests)]
        for record in records:
            on_end(record)
        return Play(
            records=records,
            readings=_readings(run, self._limits.num_kv_cells),
            counters=Counters(
                num_preemptions=sum(step.num_preemptions for step in run.steps),
                num_recomputed_tokens=sum(each.num_recomputed_tokens for each in run.requests),
                num_idle_rows=sum(step.num_idle_rows for step in run.steps),
                busy_s=sum(step.step_s for step in run.steps),
            ),
            wall_s=max(run.wall_s, trace.duration_s),
        )


_ENDINGS: Final = {
    FinishReason.STOP: Ending.COMPLETED,
    FinishReason.LENGTH: Ending.COMPLETED,
    FinishReason.ABORT: Ending.CANCELLED,
    FinishReason.TIMEOUT: Ending.REJECTED,
    FinishReason.ERROR: Ending.FAILED,
    None: Ending.REJECTED,
}


def _record(trace: Trace, index: int, each: RequestRecord) -> CallRecord:
    ended_at = each.finished_at if each.finished_at is not None else each.arrival_at
    return CallRecord(
        index=index,
        group=trace.calls[index].group,
        source=each.source,
        fairness_class=each.fairness_class,
        due_at=each.arrival_at,
        sent_at=each.arrival_at,
        token_times=each.token_times,
        ended_at=ended_at,
        ending=_ENDINGS[each.finish_reason],
        reason=None if each.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) else str(each.finish_reason),
        num_prompt_tokens=each.num_prompt_tokens,
        num_cached_tokens=each.num_cached_tokens,
        num_output_tokens=len(each.token_times),
        queue_s=None if each.admitted_at is None else each.admitted_at - each.arrival_at,
    )


def _readings(run: Run, num_cells: int) -> list[Reading]:
    """Steps, thinned out to what would be read from a daemon, and the pauses between them."""
    readings: list[Reading] = []
    num_preemptions, ended_at = 0, 0.0
    for step in run.steps:
        num_preemptions += step.num_preemptions
        is_after_pause = step.started_at > ended_at + READING_EVERY_S
        if is_after_pause:
            readings.append(Reading(at=ended_at, num_running=0, num_waiting=0))
        ended_at = step.started_at + step.step_s
        if is_after_pause or not readings or step.started_at >= readings[-1].at + READING_EVERY_S:
            readings.append(
                Reading(
                    at=step.started_at,
                    num_running=step.num_rows,
                    num_waiting=step.num_waiting,
                    kv_used=step.kv_used,
                    kv_total=num_cells,
                    num_preemptions=num_preemptions,
                )
            )
    return readings
