"""How long texts wait for a thread that tokenises, and how long it takes. The event loop is the only writer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from homeai.vitals import Tokenised

T = TypeVar("T")

NUM_KEPT: Final = 256


class Tokenising:
    def __init__(self) -> None:
        self.latest: deque[Tokenised] = deque(maxlen=NUM_KEPT)  # that took a thread
        self.num_texts = 0
        self.worked_s = 0.0

    def here(self, work: Callable[[], T]) -> T:
        """At once, for what takes less time than a thread takes to answer."""
        began_at = time.monotonic()
        result = work()
        self.num_texts += 1
        self.worked_s += time.monotonic() - began_at
        return result

    async def in_thread(self, threads: Executor, num_chars: int, work: Callable[[], T]) -> T:
        asked_at = time.monotonic()

        def timed() -> tuple[T, float, float]:
            began_at = time.monotonic()
            return work(), began_at, time.monotonic()

        result, began_at, ended_at = await asyncio.get_running_loop().run_in_executor(threads, timed)
        self.num_texts += 1
        self.worked_s += ended_at - began_at
        self.latest.append(Tokenised(num_chars, began_at - asked_at, ended_at - began_at))
        return result
