"""The machine is kept awake exactly while there is something to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from homeai.server.sleep_lock import SleepLock, systemd_inhibit
from tests.daemon import eventually_async

LOOK_S = 0.01


class Logind:
    """Stands for systemd-inhibit: says in a file that a lock is held, and which one, for as long as it runs."""

    def __init__(self, directory: Path) -> None:
        self.denies: set[str] = set()
        self.asked: list[str] = []
        self._file = directory / "lock"

    def command(self, what: str) -> list[str]:
        self.asked.append(what)
        if what in self.denies:
            return ["sh", "-c", "echo Access denied >&2; exit 1"]
        return ["sh", "-c", 'echo "$1" > "$2"; cat; rm "$2"', "inhibit", what, str(self._file)]

    @property
    def lock(self) -> str:
        with suppress(FileNotFoundError):
            return self._file.read_text().strip()
        return ""


@pytest.fixture
def logind(tmp_path: Path) -> Logind:
    return Logind(tmp_path)


@asynccontextmanager
async def running(logind: Logind, is_busy: Callable[[], bool], linger_s: float = LOOK_S) -> AsyncIterator[None]:
    lock = SleepLock(is_busy, command=logind.command, look_s=LOOK_S, linger_s=linger_s)
    task = asyncio.create_task(lock.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_lock_is_held_while_busy_and_no_longer(logind: Logind) -> None:
    live = ["request"]
    async with running(logind, lambda: bool(live)):
        await eventually_async(lambda: logind.lock == "sleep")
        live.clear()
        await eventually_async(lambda: logind.lock == "")
        live.append("another")
        await eventually_async(lambda: logind.lock == "sleep")
    assert logind.lock == ""


async def test_lock_outlasts_a_pause_between_two_answers(logind: Logind) -> None:
    busy = iter([True, False, False, True])
    looks: list[bool] = []

    def is_busy() -> bool:
        looks.append(next(busy, False))
        return looks[-1]

    async with running(logind, is_busy, linger_s=5 * LOOK_S):
        await eventually_async(lambda: len(looks) > 12)
    assert logind.asked == ["sleep"]


async def test_what_is_not_granted_is_said_once_and_the_lesser_lock_taken(
    logind: Logind, caplog: pytest.LogCaptureFixture
) -> None:
    logind.denies = {"sleep"}
    live = ["request"]
    with caplog.at_level(logging.WARNING):
        async with running(logind, lambda: bool(live)):
            await eventually_async(lambda: logind.lock == "idle")
            live.clear()
            await eventually_async(lambda: logind.lock == "")
            live.append("another")
            await eventually_async(lambda: logind.lock == "idle")
    assert [record.getMessage() for record in caplog.records] == [
        "no lock against sleep while answers are written: Access denied"
    ]


async def test_without_any_lock_nothing_is_asked_again_until_the_next_time(logind: Logind) -> None:
    logind.denies = {"sleep", "idle"}
    num_looks = 0

    def is_busy() -> bool:
        nonlocal num_looks
        num_looks += 1
        return True

    async with running(logind, is_busy):
        await eventually_async(lambda: logind.asked == ["sleep", "idle"])
        num_looks = 0
        await eventually_async(lambda: num_looks > 10)
    assert logind.asked == ["sleep", "idle"]


async def test_program_that_is_gone_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lock = SleepLock(lambda: True, command=lambda what: ["/nonexistent/systemd-inhibit"], look_s=LOOK_S)
        task = asyncio.create_task(lock.run())
        await eventually_async(lambda: len(caplog.records) == 2)
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_lock_lasts_as_long_as_our_pipe() -> None:
    assert systemd_inhibit("sleep")[-1] == "cat"
