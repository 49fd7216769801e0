"""Nothing answers: why, as far as this machine can tell. Looked at in order; the first cause that holds is told."""

from __future__ import annotations

from homeai.evaluation.doctor.facts import Facts, Listener, Quiet
from homeai.evaluation.doctor.finding import Finding


def check(facts: Facts) -> Finding | None:
    """None also where no cause was found: then nothing could be examined.

    1. The settings cannot be used. 2. Another program has the port. 3. A homeai has it, and does not answer.
    4. Nobody runs it: a unit that is stopped, or none at all.
    """
    silence = facts.silence
    if silence is None or facts.machine is None or silence.why is Quiet.LOCKED:
        return None
    seen = f"{facts.url}: {silence.why} ({silence.detail})"
    listener = facts.machine.listener
    if facts.config_error is not None and listener is None:
        return Finding(
            check="settings",
            title="The settings cannot be used, so the daemon does not start",
            evidence=[seen, facts.config_error],
            cause="A value that is not allowed.",
            advice=["Put it right; `homeai config check` says when it is."],
        )
    if listener is not None and not listener.is_homeai:
        return _taken(seen, listener)
    if listener is not None and not _has_failed(facts):
        return Finding(
            check="hung",
            title="The daemon runs, and does not answer",
            evidence=[seen, f"port {listener.port} is {_who(listener)}'s"],
            cause="It is hung or stopped, or still starting (systemd's socket takes connections before it does).",
            advice=[
                "`ps -o pid,stat,cmd` (T: stopped, `kill -CONT`); `journalctl -u homeai`; `systemctl restart homeai`."
            ],
        )
    return _nobody(facts, seen)


def _taken(seen: str, listener: Listener) -> Finding:
    return Finding(
        check="port-taken",
        title=f"Port {listener.port} belongs to another program",
        evidence=[seen, f"port {listener.port} is {_who(listener)}'s"],
        cause="homeai cannot listen there, or you ask the wrong port.",
        advice=[
            f"End it, or let homeai listen elsewhere; clients that know port {listener.port} need the new one, too."
        ],
        settings={"server.port": str(listener.port + 1 if listener.port < 65535 else 8700)},
    )


def _nobody(facts: Facts, seen: str) -> Finding | None:
    assert facts.machine is not None, "checked before"
    units = [unit for unit in facts.machine.units if unit.load_state == "loaded"]
    if _has_failed(facts) or any(access.problem for access in facts.machine.accesses):
        return None  # told by `house`
    if not units:
        return Finding(
            check="not-running",
            title="No daemon runs",
            evidence=[seen, "no unit homeai.service or homeai.socket is installed, for the system or this user"],
            cause="Nobody started it, or it listens elsewhere (--url says where).",
            advice=["`homeai serve`, or as a service: `sudo scripts/install-service`."],
        )
    unit = units[0]
    flag = "--user " if unit.scope == "user" else ""
    told = ", ".join(f"{each.name} {each.active_state} ({each.sub_state})" for each in units)
    return Finding(
        check="stopped",
        title="The service is stopped",
        evidence=[seen, f"systemd ({unit.scope}): {told}"],
        cause="It was stopped, or never started since it was installed.",
        advice=[f"`systemctl {flag}enable --now homeai.socket`, then `systemctl {flag}start homeai`."],
    )


def _has_failed(facts: Facts) -> bool:
    units = facts.machine.units if facts.machine else ()
    return any(unit.active_state == "failed" or unit.sub_state == "auto-restart" for unit in units)


def _who(listener: Listener) -> str:
    if listener.pid is None:
        return f"a program of {listener.user or 'another user'} (root may see which)"
    return f"{listener.name} ({listener.pid}, user {listener.user})"
