"""What can be wrong, a file for each concern; each check is `(Facts) -> Finding | None`, and pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from homeai.evaluation.doctor.checks import (
    admission,
    busy_cpu,
    clients,
    device_idle,
    graphics,
    house,
    kv,
    loading,
    long_prompts,
    memory,
    prefix_cache,
    refusals,
    serial,
    silence,
    state,
    tail,
    thermal,
    tokenising,
)
from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding, Severity

CHECKS: Final[tuple[Callable[[Facts], Finding | None], ...]] = (
    silence.check,
    house.check_systemd,
    house.check_permissions,
    house.check_disk,
    state.check,
    state.check_deaths,
    memory.check,
    memory.check_machine,
    memory.check_reduced,
    graphics.check_build,
    graphics.check_driver,
    thermal.check,
    thermal.check_cpu,
    busy_cpu.check,
    device_idle.check_away,
    device_idle.check_paused,
    device_idle.check,
    refusals.check,
    kv.check,
    admission.check,
    tokenising.check,
    long_prompts.check_others,
    long_prompts.check,
    tail.check,
    prefix_cache.check,
    prefix_cache.check_shortened,
    prefix_cache.check_resent,
    clients.check,
    serial.check,
    loading.check,
    state.check_notes,
)


def examine(facts: Facts) -> list[Finding]:
    """All that was found, what hurts first."""
    found = [finding for check in CHECKS if (finding := check(facts)) is not None]
    return sorted(found, key=lambda finding: finding.severity is not Severity.TROUBLE)
