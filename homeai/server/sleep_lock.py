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

LOGIND = Path("/run/systemd/seats")
LOOK_S = 1.0
LINGER_S = 10.0  # after the last answer: the next turn of a conversation should not take the lock anew
ATTEMPTS = ("sleep:idle", "idle")  # the second one, against suspending when nobody is at the machine, is anybody's


def systemd_inhibit(what: str) -> list[str]:
    why = "answers are being written"
    return ["systemd-inhibit", f"--what={what}", "--mode=block", "--who=homeai", f"--why={why}", "cat"]


def is_available() -> bool:
    return LOGIND.is_dir() and shutil.which("systemd-inhibit") is not None


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
        self._attempts = list(ATTEMPTS)
        self._holder: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Ends when logind grants no lock; without one the machine may sleep whenever it likes."""
        idle_s = self._linger_s
        try:
            while self._attempts:
                idle_s = 0.0 if self._is_busy() else idle_s + self._look_s
                if self._holder is not None and self._holder.returncode is not None:
                    await self._refused(self._holder)
                elif idle_s == 0 and self._holder is None:
                    await self._take()
                elif idle_s >= self._linger_s:
                    await self._release()
                await asyncio.sleep(self._look_s)
        finally:
            await self._release()

    async def _take(self) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            self._holder = await asyncio.create_subprocess_exec(
                *self._command(self._attempts[0]),
                stdin=pipe,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=pipe,
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            log.warning("the machine may suspend while answers are written: %s", error)
            self._attempts.clear()

    async def _refused(self, holder: asyncio.subprocess.Process) -> None:
        _, words = await holder.communicate()
        self._holder = None
        what = self._attempts.pop(0)
        reason = words.decode(errors="replace").strip()
        if self._attempts:
            log.info("no lock against %s (%s): trying another one", what, reason)
        else:
            log.warning("the machine may suspend while answers are written, no lock is granted: %s", reason)

    async def _release(self) -> None:
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None, "it was started with a pipe"
        holder.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            await holder.communicate()
