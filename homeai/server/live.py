"""The status as it changes, for everybody who watches: built once in a tick, and only while somebody does.

No task of its own: watchers wake at the same ticks, and the first of them builds what all of them send.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec

from homeai.server.service import Service
from homeai.server.status import snapshot

TICK_S: Final = 0.5
IDLE_TICKS: Final = 10  # nothing happens: one event in five seconds


class Live:
    """`build` makes the data of an event, `look` what tells whether it would be another one by now."""

    def __init__(self, build: Callable[[], bytes], look: Callable[[], object], is_over: Callable[[], bool]) -> None:
        self._build = build
        self._look = look
        self._is_over = is_over
        self._event = b""
        self._seen: object = None
        self._built_at = -IDLE_TICKS  # in ticks
        self._looked_at = -1

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The latest at once, then each new one."""
        loop = asyncio.get_running_loop()
        sent_at = -1
        while not self._is_over():
            tick = int(loop.time() / TICK_S)
            self._refresh(tick)
            if self._built_at != sent_at:
                sent_at = self._built_at
                yield self._event
            await asyncio.sleep((tick + 1) * TICK_S - loop.time())

    def _refresh(self, tick: int) -> None:
        if tick == self._looked_at:
            return
        self._looked_at = tick
        now = self._look()
        if now != self._seen or tick - self._built_at >= IDLE_TICKS:
            self._seen, self._built_at = now, tick
            self._event = b"data: " + self._build() + b"\n\n"


def live(service: Service) -> Live:
    return Live(
        build=lambda: msgspec.json.encode(snapshot(service)),
        look=lambda: _fingerprint(service),
        is_over=lambda: service.is_closing,
    )


def _fingerprint(service: Service) -> object:
    step, keeper = service.client.last_step, service.keeper
    return (
        service.supervisor.state,
        service.supervisor.progress,
        step.step if step else 0,
        service.client.num_live,
        service.client.paused,
        keeper.verdict().reason,
        service.lookback.num_changes,
    )
