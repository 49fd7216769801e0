"""The model has no room, or only after something was taken away from it; or the machine itself runs out."""

from __future__ import annotations

import re
from typing import Final

from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding, Severity
from homeai.evaluation.doctor.words import gib, percent

LOW: Final = 0.05  # of the machine's memory, available
NO_ROOM: Final = re.compile(
    r"out of memory|does not fit|unable to allocate|failed to allocate|cudaMalloc", re.IGNORECASE
)
CHANGED: Final = re.compile(
    r"^(?P<key>[\w.]+) is (?P<value>\S+) instead of (?P<wish>\S+): that does not fit into memory"
)
FEWER_LAYERS: Final = re.compile(r"^only \d+ of \d+ layers are on the GPU")


def check(facts: Facts) -> Finding | None:
    """The model does not fit, and is not served for that."""
    failure = facts.status.failure if facts.status else None
    if failure is None or NO_ROOM.search(failure) is None:
        return None
    cells = facts.config.scheduler.kv_cells if facts.config else 0
    kv_type = facts.config.model.kv_type if facts.config else "f16"
    settings = {"scheduler.kv_cells": str(max(4096, cells // 2))} if cells > 4096 else {}
    if kv_type == "f16":
        settings["model.kv_type"] = "q8_0"
    holders = [f"{busy.name} ({busy.pid})" for busy in (facts.machine.others if facts.machine else ())[:3]]
    return Finding(
        check="out-of-memory",
        title="The model does not fit into memory",
        evidence=[
            f"the daemon says: {failure}",
            *_memory(facts),
            *([f"busy now: {', '.join(holders)}"] if holders else []),
        ],
        cause="Weights, KV cache and buffers take more than is free.",
        advice=[
            "Take one of the ways out that the daemon names; else a smaller KV cache, a stronger quantisation of "
            "KV, or a smaller model. `homeai plan` shows what takes the room.",
        ],
        settings=settings,
    )


def check_reduced(facts: Facts) -> Finding | None:
    """It fits, with less than was asked for."""
    notes = facts.status.notes if facts.status else []
    reduced = [note for note in notes if CHANGED.match(note) or FEWER_LAYERS.match(note)]
    if not reduced:
        return None
    lines = {match["key"]: match["value"] for note in reduced if (match := CHANGED.match(note))}
    return Finding(
        check="reduced-to-fit",
        title="The model was loaded with less than the settings ask for",
        evidence=[*reduced, *_memory(facts)],
        cause="All of it does not fit into memory (model.fit is auto, so it was changed as little as possible).",
        advice=["Keep it so by writing it down, or free memory, or take a smaller model (`homeai plan`)."],
        settings=lines,
        severity=Severity.HINT,
    )


def check_machine(facts: Facts) -> Finding | None:
    """Nearly nothing is left for anybody."""
    machine = facts.machine
    if machine is None or machine.available_bytes >= LOW * machine.total_bytes:
        return None
    engine = facts.status.memory.engine_rss_bytes if facts.status else 0
    return Finding(
        check="machine-memory",
        title="The machine runs out of memory",
        evidence=[
            f"{gib(machine.available_bytes)} of {gib(machine.total_bytes)} are available, {percent(LOW)} is the "
            f"least ({gib(int(LOW * machine.total_bytes))}); swapped out: {gib(machine.swap_used_bytes)}",
            *([f"the engine has {gib(engine)} of it"] if engine else []),
        ],
        cause="The system drops the model's file from memory, or ends programs, to make room.",
        advice=[
            "Less ordinary memory for what gives way in the KV cache (scheduler.host_cache_mb), a smaller KV cache "
            "or model, or fewer other programs."
        ],
        settings={"scheduler.host_cache_mb": "0"} if facts.config and facts.config.scheduler.host_cache_mb else {},
    )


def _memory(facts: Facts) -> list[str]:
    if facts.status is None:
        return []
    memory = facts.status.memory
    lines = [f"memory: {gib(memory.available_bytes)} of {gib(memory.total_bytes)} available"]
    if memory.gpu is not None:
        lines.append(f"GPU memory: {gib(memory.gpu.used_bytes)} of {gib(memory.gpu.total_bytes)} used")
    return lines
