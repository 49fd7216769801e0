"""Runs the lines of all batches, a few at once, from the start of the daemon to its end.

The one writer of what is in flight. Nothing of that is kept: after a power cut the store says which lines are not
done, and they are run again. A line that could not be served now (busy, engine gone) goes back to the front, and its
batch is left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from homeai.errors import RequestError
from homeai.server.batches.archive import Archive
from homeai.server.batches.asking import Answer, Ask, unread, written
from homeai.server.batches.lines import read
from homeai.server.batches.records import Batch, LineState, Place, Status, Usage, line_id
from homeai.server.batches.store import Store
from homeai.server.batches.turns import next_turn, retry_s
from homeai.server.sources import OnBehalf

log = logging.getLogger("homeai.batches")

LOOK_S: Final = 1.0  # between two looks at whether lines may run again
PRUNE_S: Final = 3600.0
DAY_S: Final = 86_400.0


@dataclass(eq=False, slots=True)
class Open:
    """A batch with lines to run. `retry_at` is monotonic."""

    batch: Batch
    waiting: deque[int]
    in_flight: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    num_failures: int = 0  # in a row
    retry_at: float = 0.0

    @property
    def source(self) -> str:
        return self.batch.source


class Runner:
    def __init__(
        self,
        archive: Archive,
        *,
        max_running: int,
        retention_s: float | None,
        on_behalf: Callable[[Batch], OnBehalf],
        may_run: Callable[[OnBehalf], bool],
    ) -> None:
        """`on_behalf`: for whom a batch's lines ask. `may_run`: whether they may, now."""
        self._archive = archive
        self._max_running = max_running
        self._retention_s = retention_s
        self._on_behalf = on_behalf
        self._may_run = may_run
        self._open: dict[str, Open] = {}  # oldest first
        self._served_at: dict[str, int] = {}
        self._num_turns = 0
        self._prune_at = 0.0
        self._news = asyncio.Event()

    @property
    def batches(self) -> list[Batch]:
        """Those in progress, oldest first."""
        return [entry.batch for entry in self._open.values()]

    def num_in_flight(self, batch_id: str) -> int:
        entry = self._open.get(batch_id)
        return len(entry.in_flight) if entry else 0

    async def run(self, ask: Ask) -> None:
        """Until it is cancelled; what is in flight then is given up, and is waiting the next time."""
        try:
            await self._resume()
            while True:
                await self._expire(time.time())
                await self._prune(time.monotonic())
                self._start_lines(ask)
                await self._something(self._pause_s())
        finally:
            await _cancelled(task for entry in self._open.values() for task in entry.in_flight.values())

    def add(self, batch: Batch) -> None:
        """It is in the store, and none of its lines is done."""
        self._open.setdefault(batch.batch_id, Open(batch, deque(range(1, batch.num_lines + 1))))
        self._news.set()

    async def drop(self, batch_id: str) -> None:
        """It has ended in the store: what is in flight of it is aborted."""
        entry = self._open.pop(batch_id, None)
        if entry is not None:
            await _cancelled(entry.in_flight.values())
            self._news.set()

    # ---- the loop --------------------------------------------------------------------------------

    async def _resume(self) -> None:
        """What an earlier run of the daemon left."""
        while True:
            try:
                found = await self._archive.do(Store.open_batches)
                break
            except RequestError as error:
                await asyncio.sleep(error.retry_after_s or LOOK_S)
        resumed = {b.batch_id: Open(b, deque(numbers)) for b, numbers in found if b.batch_id not in self._open}
        for batch_id, entry in resumed.items():
            log.info("%s goes on: %d of %d lines are left", batch_id, len(entry.waiting), entry.batch.num_lines)
        self._open = resumed | self._open

    def _start_lines(self, ask: Ask) -> None:
        now = time.monotonic()
        while sum(len(entry.in_flight) for entry in self._open.values()) < self._max_running:
            ready = (e for e in self._open.values() if e.waiting and e.retry_at <= now and self._is_let(e))
            entry = next_turn(ready, self._served_at)
            if entry is None:
                break
            self._num_turns += 1
            self._served_at[entry.source] = self._num_turns
            number = entry.waiting.popleft()
            task = entry.in_flight[number] = asyncio.create_task(self._run_line(ask, entry, number))
            task.add_done_callback(_log_bug)

    def _is_let(self, entry: Open) -> bool:
        return self._may_run(self._on_behalf(entry.batch))

    def _pause_s(self) -> float:
        """At the latest until something is due by itself."""
        if any(entry.waiting for entry in self._open.values()):
            return LOOK_S
        expiries_s = [entry.batch.expires_at - time.time() for entry in self._open.values()]
        return max(LOOK_S, min([PRUNE_S, *expiries_s]))

    async def _something(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    async def _expire(self, now: float) -> None:
        due = [entry.batch for entry in self._open.values() if entry.batch.expires_at <= now]
        for batch in due:
            window = batch.completion_window
            message = f"this request could not be run before the completion window of {window} was over"
            try:
                await self._archive.do(Store.end, batch.batch_id, Status.EXPIRED, "batch_expired", message, now)
            except RequestError:
                return
            log.warning("%s has expired", batch.batch_id)
            await self.drop(batch.batch_id)

    async def _prune(self, now: float) -> None:
        if now < self._prune_at:
            return
        self._prune_at = now + PRUNE_S
        wall = time.time()
        oldest = float("-inf") if self._retention_s is None else wall - self._retention_s
        try:
            removed = await self._archive.do(Store.prune, wall, oldest)
        except RequestError:
            return
        for file_id in removed:
            await asyncio.to_thread(self._archive.contents.remove, file_id)

    # ---- a line ----------------------------------------------------------------------------------

    async def _run_line(self, ask: Ask, entry: Open, number: int) -> None:
        """Its answer is in the store afterwards, or it waits again."""
        batch_id = entry.batch.batch_id
        name = line_id(batch_id, number)
        is_done = False
        retry_after_s: float | None = None
        try:
            place = await self._archive.do(Store.place, batch_id, number)
            answer = await self._answer(ask, entry.batch, place, name)
            if isinstance(answer, Answer) and answer.is_to_be_retried:
                retry_after_s = answer.retry_after_s
                return
            await self._finish(entry, number, place, name, answer)
            is_done = True
        except RequestError as error:
            retry_after_s = error.retry_after_s
        finally:
            del entry.in_flight[number]
            if not is_done:
                entry.waiting.appendleft(number)
                self._leave_alone(entry, retry_after_s)
            self._news.set()

    async def _answer(self, ask: Ask, batch: Batch, place: Place, name: str) -> Answer | str:
        """Or why it cannot be asked."""
        try:
            raw = await asyncio.to_thread(self._archive.contents.read, batch.input_file_id, place.start, place.size)
        except OSError as error:
            return f"the input file cannot be read: {error.strerror}"
        line = read(raw, batch.endpoint)
        if line is None:
            return "the input file was changed since it was uploaded"
        return await ask(name, line, self._on_behalf(batch))

    async def _finish(self, entry: Open, number: int, place: Place, name: str, answer: Answer | str) -> None:
        batch_id = entry.batch.batch_id
        if isinstance(answer, Answer):
            state, usage, line = answer.state, answer.usage, written(name, place.custom_id, answer)
        else:
            state, usage, line = LineState.FAILED, Usage(), unread(name, place.custom_id, answer)
        batch = await self._archive.do(Store.finish_line, batch_id, number, state, line, usage, time.time())
        entry.num_failures, entry.retry_at = 0, 0.0
        if batch is None:
            return
        entry.batch = batch
        if batch.status is not Status.IN_PROGRESS:
            log.info("%s is done: %d completed, %d failed", batch_id, batch.num_completed, batch.num_failed)
            self._open.pop(batch_id, None)

    def _leave_alone(self, entry: Open, told_s: float | None) -> None:
        now = time.monotonic()
        if entry.retry_at <= now:  # those in flight beside it fail for the same reason
            entry.num_failures += 1
            entry.retry_at = now + retry_s(entry.num_failures, told_s)


def _log_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a line of a batch could not be run, and waits again", exc_info=task.exception())


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Return when they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
