"""What systemd says of homeai's units, of the system and of this user. Nothing where there is no systemd."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Final

from homeai.evaluation.doctor.facts import Unit

NAMES: Final = ("homeai.service", "homeai.socket")
PROPERTIES: Final = "Id,LoadState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,StatusText,User"
TIMEOUT_S: Final = 5.0


def units() -> tuple[list[Unit], str | None]:
    """Those that are installed, and the user that the system's service runs as."""
    found, user = [], None
    for scope in ("system", "user"):
        for block in _show(scope):
            if block.get("LoadState") == "loaded":
                found.append(unit_of(block, scope))
                user = user or (block.get("User") if scope == "system" else None)
    return found, user or None


def parse(text: str) -> list[dict[str, str]]:
    """Blocks of `systemctl show`, parted by empty lines."""
    blocks = (block for block in text.split("\n\n") if block.strip())
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def unit_of(block: Mapping[str, str], scope: str) -> Unit:
    def number(key: str) -> int | None:
        text = block.get(key, "")
        return int(text) if text.isdecimal() else None

    return Unit(
        name=block.get("Id", ""),
        scope=scope,
        load_state=block.get("LoadState", ""),
        active_state=block.get("ActiveState", ""),
        sub_state=block.get("SubState", ""),
        result=block.get("Result", ""),
        exit_code=number("ExecMainStatus"),
        num_restarts=number("NRestarts") or 0,
        status_text=block.get("StatusText", ""),
    )


def _show(scope: str) -> list[dict[str, str]]:
    command = ["systemctl", f"--{scope}", "show", f"--property={PROPERTIES}", *NAMES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse(done.stdout) if done.returncode == 0 else []
