"""The front end without an engine: a child that does as it is told and records what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from homeai import config
from homeai.hardware import GPU, GPUProcess, Memory
from homeai.keys import KeyStore
from homeai.ledger import LedgerRow
from homeai.messages import AddRequest, Down, EngineReady, Finished, Output, Progress, StepOutputs, StepStats, Up
from homeai.metrics import Metrics
from homeai.request import FinishReason, SampledToken, SamplingParams
from homeai.server.admission import Door
from homeai.server.books import Books
from homeai.server.client import EngineClient
from homeai.server.service import Service
from homeai.server.sources import Sources
from homeai.server.supervisor import Supervisor

QUEUE_TIMEOUT_S = 3600.0
READY = EngineReady(num_kv_cells=16384, max_model_len=8192, device="cpu", model_bytes=1, kv_bytes=2, load_s=0.5)
STATS = StepStats(
    step=1,
    mode="continuous",
    num_running=1,
    num_waiting=0,
    num_decode_tokens=1,
    num_prefill_tokens=0,
    kv_used=10,
    step_s=0.0,
    host_s=0.0,
    num_preemptions=0,
    out_of_room=False,
)


class FakeChild:
    """Says what a test makes it say; `die` ends it, and so do `kill` and `wait`."""

    def __init__(self, pid: int = 1) -> None:
        self.pid = pid
        self.heard: list[Down] = []
        self.was_killed = False
        self._said: asyncio.Queue[Up | None] = asyncio.Queue()
        self._exit_code: int | None = None

    def say(self, *messages: Up) -> None:
        for message in messages:
            self._said.put_nowait(message)

    def die(self, exit_code: int = 1) -> None:
        if self._exit_code is None:
            self._exit_code = exit_code
            self._said.put_nowait(None)

    async def messages(self) -> AsyncIterator[Up]:
        while (message := await self._said.get()) is not None:
            yield message

    def send(self, message: Down) -> None:
        self.heard.append(message)

    def kill(self) -> None:
        self.was_killed = True
        self.die(-9)

    async def wait(self) -> int:
        self.die(0)
        assert self._exit_code is not None
        return self._exit_code


class FakeProbe:
    """A machine with a GPU."""

    def memory(self) -> Memory:
        return Memory(total_bytes=1000, available_bytes=400)

    def gpu(self) -> GPU | None:
        return GPU("H200", 20, 140, 0.5)

    def gpu_processes(self) -> list[GPUProcess] | None:
        return []

    def rss_bytes(self, pid: int | None = None) -> int:
        return 10 if pid is None else 20


class FakeText:
    """A model that answers to one name."""

    name = "gemma"
    max_model_len = 8192
    load_s = 0.25
    notes = ("a note",)
    template_kind = "chat template"

    def knows(self, name: str | None) -> bool:
        return name in (None, self.name)


class FakeLedger:
    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self.events: list[tuple[str, str]] = []

    def record(self, row: LedgerRow) -> None:
        self.rows.append(row)

    def event(self, kind: str, detail: str) -> None:
        self.events.append((kind, detail))


def make_service(keys: KeyStore, *settings: tuple[str, str], ledger: FakeLedger | None = None) -> Service:
    """All of the front end but HTTP, above a child that loads."""
    loaded = config.load(None, env={}, overrides=settings)
    supervisor = Supervisor(FakeChild, loaded.residency)
    supervisor.spawn()
    return Service(
        config=loaded,
        model_path=Path("gemma.gguf"),
        supervisor=supervisor,
        client=EngineClient(
            supervisor, Door(dict.fromkeys(loaded.classes, 1000), 8), dict.fromkeys(loaded.classes, QUEUE_TIMEOUT_S)
        ),
        sources=Sources(loaded.sources, loaded.classes, loaded.scheduler.default_class, server=loaded.server),
        keys=keys,
        books=Books(Metrics(), ledger),
        probe=FakeProbe(),
    )


async def until(condition: Callable[[], object]) -> None:
    """Let the other tasks run until `condition` holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  a condition on anything, for tests only
            await asyncio.sleep(0)


def make_add(request_id: str, fairness_class: str = "interactive", *, num_prompt_tokens: int = 3) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=list(range(num_prompt_tokens)),
        sampling=SamplingParams(max_tokens=8),
        source="kitchen",
        fairness_class=fairness_class,
        arrival_at=0.0,
    )


def output(request_id: str, output_index: int, token_id: int = 7) -> Output:
    return Output(request_id, output_index, SampledToken(token_id))


def finished(
    request_id: str,
    reason: FinishReason = FinishReason.STOP,
    *,
    num_output_tokens: int = 0,
    num_cached_tokens: int = 0,
) -> Finished:
    return Finished(request_id, reason, 1.0, 2.0, num_output_tokens, 0, 0.0, num_cached_tokens=num_cached_tokens)


def step(
    *news: Output | Finished,
    admitted: tuple[str, ...] = (),
    progress: list[Progress] | None = None,
    step_s: float = 0.0,
) -> StepOutputs:
    return StepOutputs(
        outputs=[item for item in news if isinstance(item, Output)],
        admitted=list(admitted),
        finished=[item for item in news if isinstance(item, Finished)],
        stats=msgspec.structs.replace(STATS, step_s=step_s),
        progress=progress,
    )
