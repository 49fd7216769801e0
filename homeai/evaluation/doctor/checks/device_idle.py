"""Requests are there, and the device does little: what holds it up is somewhere else."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts, Window
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import gib, milliseconds, percent, seconds

MIN_BUSY_S: Final = 5.0
MUCH_IDLE: Final = 0.3  # of the time with requests in the engine, in which no step ran
IDLE_GPU: Final = 0.5  # its load while requests are there
MUCH_HOST: Final = 0.3  # of the steps' time, spent on the CPU
LATE_S: Final = 0.25  # the event loop
READ_AGAIN: Final = 1.5  # times the model's size, from storage
AWAY_S: Final = 10.0  # request-seconds


def check(facts: Facts) -> Finding | None:
    """Steps do not follow one another, or are not the device's."""
    window = facts.window
    if window is None or facts.status is None or window.busy_s < MIN_BUSY_S:
        return None
    idle = max(0.0, 1 - window.step_s / window.busy_s)
    host = window.host_s / window.step_s if window.step_s else 0.0
    gpu_is_idle = facts.on_gpu and window.gpu_load is not None and window.gpu_load < IDLE_GPU
    if idle < MUCH_IDLE and not (gpu_is_idle and host >= MUCH_HOST):
        return None
    cause, advice, settings = _told(facts, window, idle, host)
    gpu = [f"GPU load {percent(window.gpu_load)} meanwhile"] if window.gpu_load is not None else []
    return Finding(
        check="device-idle",
        title="The device idles while requests are there",
        evidence=[
            f"requests were in the engine for {window.busy_s:,.0f} s, and steps ran for {window.step_s:,.0f} s of "
            f"it: idle {percent(idle)}, up to {percent(MUCH_IDLE)} is usual",
            f"of the steps {percent(host)} is work of the CPU (up to {percent(MUCH_HOST)} is usual)",
            *gpu,
            f"the front end's loop came late by up to {milliseconds(window.max_lag_s)} (up to {milliseconds(LATE_S)} "
            "is usual)",
            *_others(facts),
        ],
        cause=cause,
        advice=advice,
        settings=settings,
    )


def check_away(facts: Facts) -> Finding | None:
    """Requests wait for the model to be loaded."""
    window, status, config = facts.window, facts.status, facts.config
    waited_s = window.reasons.get("not_resident", 0.0) if window else 0.0
    if status is None or config is None or waited_s < AWAY_S:
        return None
    policy, load_s = status.residency.policy, status.startup.total_s if status.startup else None
    settings: dict[str, str] = {}
    if policy == "idle":
        longer = 4 * config.residency.idle_timeout_s
        settings = {"residency.idle_timeout_s": f"{longer:g}"}
        advice = [
            f"Keep it for longer: {longer:g} s instead of {config.residency.idle_timeout_s:g} (or policy: pinned)."
        ]
    elif policy == "schedule":
        advice = [f"Widen residency.hours ({config.residency.hours}), or policy: pinned."]
    else:
        advice = [
            "The policy is pinned, so something took it away: the owner (`homeai yield`, `unload`, `reload`), "
            "another program on the GPU (residency.max_other_gpu_gb), or an engine that died; the log says which."
        ]
    return Finding(
        check="waiting-for-the-model",
        title="Requests wait because the model is not loaded",
        evidence=[
            f"{waited_s:,.0f} request-seconds of waiting for it lately (up to {AWAY_S:g} is usual)",
            f"residency: {status.residency.reason}; loaded {status.residency.num_loads} times since the daemon's start "
            f"{seconds(status.uptime_s)} ago" + (f", the last time in {seconds(load_s)}" if load_s else ""),
        ],
        cause=f"It was away or on its way when they came (residency.policy {policy}).",
        advice=advice,
        settings=settings,
    )


def check_paused(facts: Facts) -> Finding | None:
    window, status = facts.window, facts.status
    waited_s = window.reasons.get("paused", 0.0) if window else 0.0
    if status is None or not status.residency.paused or waited_s < AWAY_S:
        return None
    names = ", ".join(status.residency.paused)
    return Finding(
        check="paused",
        title="Requests wait because their class is paused",
        evidence=[f"{waited_s:,.0f} request-seconds of waiting lately; paused: {names}"],
        cause="The owner paused it (`homeai pause`, or the status page).",
        advice=[*(f"`homeai resume {name}`" for name in status.residency.paused)],
    )


def _told(facts: Facts, window: Window, idle: float, host: float) -> tuple[str, list[str], dict[str, str]]:
    assert facts.status is not None, "checked before"
    io, model_bytes = (facts.vitals.engine_io if facts.vitals else None), facts.status.model.size_bytes or 0
    if io is not None and io.read_bytes is not None and model_bytes and io.read_bytes > READ_AGAIN * model_bytes:
        return (
            f"The engine reads the model from storage again and again: {gib(io.read_bytes)} so far, the model has "
            f"{gib(model_bytes)}.",
            [
                "It needs more memory than it gets: fewer other programs, a higher MemoryHigh of homeai.slice, a "
                "smaller model."
            ],
            {},
        )
    busiest = facts.machine.others[0] if facts.machine and facts.machine.others else None
    if window.max_lag_s > LATE_S or (host >= MUCH_HOST and idle < MUCH_IDLE):
        who = f" ({busiest.name}, {busiest.pid}, keeps {busiest.num_cpus:.1f} of them busy)" if busiest else ""
        return (
            f"The CPU does not keep up{who}.",
            ["End or renice what takes it, or give homeai more: `systemctl edit homeai.slice`, CPUWeight=100."],
            {},
        )
    return (
        "Nothing of the engine's own work explains it: it was stopped, or waited for storage, a driver or the system.",
        [
            "`homeai status` while it happens; `journalctl -u homeai -u homeai.slice` and `dmesg` for storage and "
            "driver errors. A stopped process shows as T in `ps`."
        ],
        {},
    )


def _others(facts: Facts) -> list[str]:
    machine = facts.machine
    if machine is None or not machine.others:
        return []
    names = ", ".join(f"{busy.name} ({busy.pid}) {busy.num_cpus:.1f}" for busy in machine.others[:3])
    return [f"other programs keep {machine.others_cpus:.1f} of {machine.num_cpus} CPUs busy: {names}"]
