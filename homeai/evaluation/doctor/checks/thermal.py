"""The device is too hot, or may not draw enough power, and runs slower for that."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts, GPUHealth
from homeai.evaluation.doctor.finding import Finding, Severity

HEAT: Final = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown")
POWER: Final = ("hw_power_brake_slowdown", "sw_power_cap")
SLOW_CLOCK: Final = 0.8  # of the highest, under a power cap
CAPPED: Final = 0.95  # of the limit that the maker set


def check(facts: Facts) -> Finding | None:
    health = facts.machine.graphics.health if facts.machine else None
    if health is None:
        return None
    hot = [reason for reason in health.throttled if reason in HEAT]
    if hot:
        limit = health.slowdown_temperature
        return Finding(
            check="thermal",
            title="The GPU is throttled because it is too hot",
            evidence=[
                f"{health.name}: {', '.join(hot)} in force",
                _temperature(health),
                _clock(health),
                *_power(health),
            ],
            cause="It cannot get rid of its heat: dust, a fan, warm air, a case without room.",
            advice=[
                "Clean it and see that its fans turn; or let it draw less, which costs little speed: `nvidia-smi "
                f"-pl {int(0.8 * (health.power_limit_w or 300))}`."
                + (f" It slows down from {limit} °C on." if limit else "")
            ],
        )
    power = [reason for reason in health.throttled if reason in POWER]
    slow = (
        health.clock_mhz is not None
        and health.max_clock_mhz is not None
        and health.clock_mhz < SLOW_CLOCK * health.max_clock_mhz
    )
    is_lowered = (
        health.power_limit_w is not None
        and health.default_power_limit_w is not None
        and health.power_limit_w < CAPPED * health.default_power_limit_w
    )
    if "hw_power_brake_slowdown" not in power and not (power and slow and is_lowered):
        return None
    default = f"{health.default_power_limit_w:.0f} W" if health.default_power_limit_w else "the default"
    return Finding(
        check="power-cap",
        title="The GPU runs slower because it may not draw more power",
        evidence=[f"{health.name}: {', '.join(power)} in force", _clock(health), *_power(health)],
        cause="A power limit below the maker's, or a supply that is too weak.",
        advice=[f"`nvidia-smi -pl` up to {default}, if cooling and supply are made for it."],
        severity=Severity.HINT,
    )


def check_cpu(facts: Facts) -> Finding | None:
    machine = facts.machine
    if machine is None or machine.cpu_throttle_events == 0 or facts.on_gpu:
        return None
    return Finding(
        check="cpu-thermal",
        title="The CPU is throttled because it is too hot",
        evidence=[f"{machine.cpu_throttle_events} throttle events while it was looked at; none is usual"],
        cause="It cannot get rid of its heat.",
        advice=["Clean it and see that its fans turn; one thread less (model.num_threads) makes less heat."],
        settings={"model.num_threads": str(max(1, machine.num_cpus - 1))},
    )


def _temperature(health: GPUHealth) -> str:
    limit = f", slows down at {health.slowdown_temperature} °C" if health.slowdown_temperature else ""
    return f"{health.temperature} °C{limit}"


def _clock(health: GPUHealth) -> str:
    return f"clock {health.clock_mhz} of {health.max_clock_mhz} MHz"


def _power(health: GPUHealth) -> list[str]:
    if health.power_w is None:
        return []
    return [f"draws {health.power_w:.0f} W of {health.power_limit_w or 0:.0f} W allowed"]
