"""Whose text becomes a vector next. One is computed at a time, in a child process that lives as long as it is asked.

Requests take turns, so that one with a thousand inputs does not keep a single one waiting for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from homeai.embedding.messages import LoadEmbedder
from homeai.errors import NotReady, RequestError, TooManyRequests

log = logging.getLogger("homeai")

RETRY_AFTER_S: Final = 2.0


class Child(Protocol):
    """A process that makes one vector at a time. Raises `NotReady` when it cannot, and is closed then."""

    @property
    def pid(self) -> int: ...

    async def embed(self, token_ids: list[int]) -> bytes: ...

    async def close(self) -> None: ...


StartChild = Callable[[LoadEmbedder], Awaitable[Child]]


@dataclass(eq=False, slots=True)
class _Job:
    """One request's inputs, computed from the first to the last."""

    inputs: list[list[int]]
    load: LoadEmbedder
    done: asyncio.Future[list[bytes]]
    vectors: list[bytes] = field(default_factory=list)

    def fail(self, error: RequestError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class EmbeddingQueue:
    """Runs on the event loop; the one task that talks to the child is `_work`."""

    def __init__(self, start_child: StartChild, *, max_waiting: int, idle_timeout_s: float) -> None:
        self._start_child = start_child
        self._max_waiting = max_waiting
        self._idle_timeout_s = idle_timeout_s
        self._jobs: deque[_Job] = deque()
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._loaded: LoadEmbedder | None = None  # by the child

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def compute(self, inputs: list[list[int]], load: LoadEmbedder) -> list[bytes]:
        """A vector for each input; `load` says what a new child loads. Raises `TooManyRequests`, `NotReady`."""
        if len(self._jobs) >= self._max_waiting:
            raise TooManyRequests(
                f"{len(self._jobs)} requests wait for embeddings, {self._max_waiting} maximum",
                retry_after_s=RETRY_AFTER_S,
            )
        job = _Job(inputs, load, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._news.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await job.done
        finally:
            if job in self._jobs:  # its client left
                self._jobs.remove(job)

    async def close(self) -> None:
        """Nobody is answered any more; the child ends."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        for job in self._jobs:
            job.fail(NotReady("the server stops", retry_after_s=RETRY_AFTER_S))

    async def _work(self) -> None:
        """Until nobody asks for a while: an input of each request in turn."""
        try:
            while self._jobs or await self._comes_news():
                await self._turn(self._jobs.popleft())
        finally:
            await self._end_child()

    async def _comes_news(self) -> bool:
        """False when nobody came for long, and the child is ended."""
        self._news.clear()
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                await self._news.wait()
        except TimeoutError:
            await self._end_child()
        return bool(self._jobs)

    async def _turn(self, job: _Job) -> None:
        """The next input of a request; it goes behind the others then."""
        try:
            job.vectors.append(await self._vector(job))
        except asyncio.CancelledError:
            job.fail(NotReady("the server stops", retry_after_s=RETRY_AFTER_S))
            raise
        except NotReady as error:
            log.warning("%s", error.message)
            job.fail(error)
        except Exception:
            log.exception("embeddings are broken; their process starts again")
            await self._end_child()
            job.fail(RequestError("the embeddings could not be computed"))
        if job.done.done():  # failed, or its client left
            return
        if len(job.vectors) == len(job.inputs):
            job.done.set_result(job.vectors)
        else:
            self._jobs.append(job)

    async def _vector(self, job: _Job) -> bytes:
        try:
            if self._child is not None and self._loaded != job.load:  # another model took its place
                await self._end_child()
            if self._child is None:
                self._child, self._loaded = await self._start_child(job.load), job.load
            return await self._child.embed(job.inputs[len(job.vectors)])
        except NotReady:
            await self._end_child()
            raise

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.close()
