"""Facts of a healthy daemon, of which a test changes what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from homeai.config import Config, load
from homeai.evaluation.doctor.facts import Facts, GPUHealth, Graphics, Machine, Row
from homeai.status import (
    BatchStatus,
    GPUStatus,
    KVStatus,
    MemoryStatus,
    ModelStatus,
    PolicyStatus,
    ResidencyStatus,
    StartupStatus,
    Status,
    TotalsStatus,
)
from homeai.vitals import BeginningStatus, EngineIO, Slice, Tokenised, Vitals

GIB = 2**30
NOW = 1_800_000_000.0
STATUS = Status(
    version="0",
    state="resident",
    load=None,
    failure=None,
    uptime_s=3600.0,
    model=ModelStatus("model", "model.gguf", GIB, "cpu", 8192, "chat template", 1.0),
    memory=MemoryStatus(GIB, GIB // 4, 2 * GIB, GIB // 8, 32 * GIB, 20 * GIB, None),
    kv=KVStatus(100, 16384),
    batch=BatchStatus("continuous", 10, 1, 0, 8, 1, 0, 512, 0.02, 0.001),
    policy=PolicyStatus("auto", True, 256, "auto"),
    classes=[],
    requests=[],
    totals=TotalsStatus(10, 0, 0, 0, 0),
    residency=ResidencyStatus("pinned", "resident", "always loaded", num_loads=1),
    startup=StartupStatus(3.0, {"weights": 1.0}, 0.4),
)
SLICE = Slice(at=NOW - 60, num_samples=60, num_busy_samples=60, running=1.0, step_s=58.0, host_s=1.0, num_steps=2000)
MACHINE = Machine(num_cpus=8, total_bytes=32 * GIB, available_bytes=20 * GIB)
CARD = "NVIDIA 0x2b85 at 0000:01:00.0"


def create_status(**changes: object) -> Status:
    """Fields of the status, of its model (`device`), its residency (`policy`, `num_loads`) or its memory (`gpu`)."""
    status = STATUS
    for part, names in (
        ("model", {"device", "size_bytes"}),
        ("residency", {"policy", "num_loads", "paused", "reason"}),
    ):
        fields = {name: changes.pop(name) for name in names & changes.keys()}
        status = msgspec.structs.replace(status, **{part: msgspec.structs.replace(getattr(status, part), **fields)})
    memory = {name: changes.pop(name) for name in {"gpu", "available_bytes", "kv_bytes"} & changes.keys()}
    status = msgspec.structs.replace(status, memory=msgspec.structs.replace(status.memory, **memory))
    return msgspec.structs.replace(status, **changes)


def create_slice(**changes: object) -> Slice:
    return msgspec.structs.replace(SLICE, **changes)


def create_vitals(
    *slices: Slice,
    tokenised: Sequence[Tokenised] = (),
    beginnings: Sequence[BeginningStatus] = (),
    engine_io: EngineIO | None = None,
) -> Vitals:
    return Vitals(
        pid=10,
        engine_pid=11,
        num_restarts=0,
        model_path="model.gguf",
        settings={},
        slices=list(slices) or [SLICE],
        tokenised=list(tokenised),
        beginnings=list(beginnings),
        engine_io=engine_io,
    )


def create_config(*settings: tuple[str, str]) -> Config:
    return load(None, env={}, overrides=settings)


def create_machine(**changes: object) -> Machine:
    return replace(MACHINE, **changes)  # type: ignore[arg-type]


def create_graphics(**changes: object) -> Machine:
    """A machine with a card whose driver works."""
    graphics = Graphics(on_bus=[CARD], module_loaded=True, health=GPUHealth("RTX 5090"))
    return create_machine(graphics=replace(graphics, **changes))  # type: ignore[arg-type]


def create_facts(**changes: object) -> Facts:
    facts = Facts(
        at=NOW,
        url="http://127.0.0.1:8700",
        status=STATUS,
        vitals=create_vitals(),
        config=create_config(),
        machine=MACHINE,
        hours=1.0,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def create_row(at: float = 0.0, **changes: object) -> Row:
    """A short chat, answered soon; `at` in seconds of the test's own time."""
    row = Row(
        arrival=NOW - 1000 + at,
        source="ana",
        fairness_class="interactive",
        num_prompt=100,
        num_output=50,
        queue_s=0.01,
        ttft_s=0.2,
        e2e_s=1.0,
        finish_reason="stop",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


GPU = GPUStatus("RTX 5090", 8 * GIB, 32 * GIB, 0.9)
