"""The machine around the daemon: disk, permissions, systemd."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts, Unit
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import gib, percent

LEAST_BYTES: Final = 1024**3
LEAST: Final = 0.02  # of the disk
MANY_RESTARTS: Final = 3
EXITS: Final = {2: "a setting cannot be used", 3: "the model cannot be loaded"}  # as the daemon tells systemd


def check_disk(facts: Facts) -> Finding | None:
    full = [d for d in (facts.machine.disks if facts.machine else ()) if d.free_bytes < least_bytes(d.total_bytes)]
    if not full:
        return None
    days = facts.config.ledger.retention_days if facts.config else 90
    return Finding(
        check="disk",
        title="The disk is nearly full",
        evidence=[
            f"{disk.path}: {gib(disk.free_bytes)} of {gib(disk.total_bytes)} free "
            f"({percent(disk.free_bytes / max(1, disk.total_bytes))}); {gib(least_bytes(disk.total_bytes))} is the "
            "least"
            for disk in full
        ],
        cause="The ledger and answers of batches cannot be written when it is full; models cannot be fetched.",
        advice=[
            "`homeai models list` and `homeai models rm` for models that nobody uses; files of batches go after "
            "batches.retention_days."
        ],
        settings={"ledger.retention_days": str(max(1, days // 3))} if days != 1 else {},
    )


def least_bytes(total_bytes: int) -> int:
    return min(LEAST_BYTES, int(LEAST * total_bytes))


def check_permissions(facts: Facts) -> Finding | None:
    wrong = [each for each in (facts.machine.accesses if facts.machine else ()) if each.problem is not None]
    if not wrong:
        return None
    first = wrong[0]
    missing = all("does not exist" in (each.problem or "") for each in wrong)
    return Finding(
        check="missing-files" if missing else "permissions",
        title="Files that the daemon needs are missing" if missing else "The daemon may not use its own files",
        evidence=[f"{each.what}: {each.path}: {each.problem} (user {each.user})" for each in wrong],
        cause="It was moved or deleted, or the settings name another place."
        if missing
        else f"The files belong to somebody else, and the daemon runs as {first.user}.",
        advice=[
            "`homeai models list` shows what is there; model.path or --model says which one to take."
            if missing
            else f"`chown -R {first.user} {first.path}`, or have the daemon run as who owns them."
        ],
    )


def check_systemd(facts: Facts) -> Finding | None:
    units = facts.machine.units if facts.machine else ()
    for unit in units:
        if unit.active_state == "failed" or unit.sub_state == "auto-restart":
            return _failed(unit)
        if unit.num_restarts >= MANY_RESTARTS and unit.name.endswith(".service"):
            return Finding(
                check="restarts",
                title=f"systemd had to start {unit.name} again and again",
                evidence=[
                    f"{unit.num_restarts} restarts since it was started (up to {MANY_RESTARTS - 1} are usual); last "
                    f"result {unit.result}, exit code {unit.exit_code}"
                ],
                cause=_why(unit),
                advice=[f"`journalctl {_flag(unit)}-u {unit.name}` says what went before each of them."],
            )
    return None


def _failed(unit: Unit) -> Finding:
    return Finding(
        check="unit-failed",
        title=f"{unit.name} has failed",
        evidence=[
            f"systemd ({unit.scope}): {unit.active_state}, {unit.sub_state}; result {unit.result}, exit code "
            f"{unit.exit_code}; restarts {unit.num_restarts}",
            *([f"it last said: {unit.status_text}"] if unit.status_text else []),
        ],
        cause=_why(unit),
        advice=[
            f"`journalctl {_flag(unit)}-u {unit.name} -n 50` has its last words; `homeai config check` looks at the "
            f"settings. Then `systemctl {_flag(unit)}reset-failed {unit.name}` and `systemctl {_flag(unit)}start "
            f"{unit.name}`."
        ],
    )


def _why(unit: Unit) -> str:
    if unit.exit_code in EXITS:
        return f"It ended with exit code {unit.exit_code}: {EXITS[unit.exit_code]}."
    return {
        "watchdog": "Its front end hung: nothing was heard of it for WatchdogSec.",
        "oom-kill": "The system ended it because memory ran out.",
        "timeout": "It did not start or stop within the time that the unit allows.",
        "start-limit-hit": "It failed too often in a short time, and systemd gave up.",
        "core-dump": "It crashed.",
        "signal": "It was killed.",
    }.get(unit.result, f"It ended ({unit.result}).")


def _flag(unit: Unit) -> str:
    return "--user " if unit.scope == "user" else ""
