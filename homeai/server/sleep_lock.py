"""Keeps the machine from suspending while answers are written, where systemd-logind decides that.

`systemd-inhibit` holds the lock for as long as the program below it runs, and that one ends when our pipe to it closes:
also if we are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger("homeai.sleep")

LOGIND = Path("/run/systemd/system"), Path("/run/systemd/seats")  # images of systems that never booted have the latter
LOOK_S = 1.0
LINGER_S = 10.0  # after the last answer: the next turn of a conversation should not take the lock anew
ATTEMPTS = ("sleep", "idle")  # the second one, against suspending when nobody is at the machine, is granted to anybody


def systemd_inhibit(what: str) -> list[str]:
    why = "answers are being written"
    return ["systemd-inhibit", f"--what={what}", "--mode=block", "--who=homeai", f"--why={why}", "cat"]


def is_available() -> bool:
    return all(place.is_dir() for place in LOGIND) and shutil.which("systemd-inhibit") is not None


class SleepLock:
    """Taken while `is_busy`, and a moment longer."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        *,
        command: Callable[[str], Sequence[str]] = systemd_inhibit,
        look_s: float = LOOK_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._is_busy = is_busy
        self._command = command
        self._look_s = look_s
        self._linger_s = linger_s
        self._holder: asyncio.subprocess.Process | None = None
        self._num_refused = 0  # of ATTEMPTS, since the last answer began
        self._complaints: set[str] = set()  # said once

    async def run(self) -> None:
        idle_s = self._linger_s
        try:
            while True:
                idle_s = 0.0 if self._is_busy() else idle_s + self._look_s
                if self._holder is not None and self._holder.returncode is not None:
                    await self._take_refusal(self._holder)
                if idle_s >= self._linger_s:
                    await self._release()
                elif idle_s == 0 and self._holder is None and self._num_refused < len(ATTEMPTS):
                    await self._take(ATTEMPTS[self._num_refused])
                await asyncio.sleep(self._look_s)
        finally:
            await self._release()

    async def _take(self, what: str) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            self._holder = await asyncio.create_subprocess_exec(
                *self._command(what),
                stdin=pipe,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=pipe,
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            self._refuse(what, str(error))

    async def _take_refusal(self, holder: asyncio.subprocess.Process) -> None:
        _, words = await holder.communicate()
        self._holder = None
        self._refuse(ATTEMPTS[self._num_refused], words.decode(errors="replace").strip())

    def _refuse(self, what: str, reason: str) -> None:
        """Try the next one. When none is left the machine may sleep at any time, until we were idle for a while."""
        self._num_refused += 1
        if what not in self._complaints:
            self._complaints.add(what)
            log.warning("no lock against %s while answers are written: %s", what, reason)

    async def _release(self) -> None:
        self._num_refused = 0
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None, "it was started with a pipe"
        holder.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            await holder.communicate()
