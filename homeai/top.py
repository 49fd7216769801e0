"""`homeai top`: frames from the daemon's event stream until somebody presses q.

A thread reads the stream and starts it again when it breaks; the main thread draws, and looks at the keyboard.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

from rich.console import Console
from rich.live import Live

from homeai.console import DaemonClient
from homeai.errors import HomeAIError
from homeai.status import Status
from homeai.top_frame import frame

POLL_S: Final = 0.1
RETRY_S: Final = 1.0
QUIT: Final = frozenset(b"qQ\x03\x04")  # Ctrl-C and Ctrl-D where the terminal passes them on


def show_once(daemon: DaemonClient, console: Console) -> None:
    """Raises `HomeAIError` when no daemon answers."""
    status = next(daemon.statuses(), None)
    if status is None:
        raise HomeAIError("the daemon is about to end")
    console.print(frame(status, console.width, None))


def show(daemon: DaemonClient, console: Console) -> None:
    """Until q or Ctrl-C. Raises `HomeAIError` when no daemon answers at first; later it is waited for."""
    first = daemon.status()
    news: SimpleQueue[Status | HomeAIError] = SimpleQueue()
    threading.Thread(target=_follow, args=(daemon, news), daemon=True).start()
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        _draw(live, console, first, None, news)


def _draw(
    live: Live, console: Console, status: Status, problem: str | None, news: SimpleQueue[Status | HomeAIError]
) -> None:
    size = None
    try:
        while not _is_quit_pressed():
            fresh = _latest(news)
            if fresh is None and size == console.size:
                continue
            size = console.size
            if isinstance(fresh, HomeAIError):
                problem = str(fresh)
            elif fresh is not None:
                status, problem = fresh, None
            live.update(frame(status, size.width, size.height, problem), refresh=True)
    except KeyboardInterrupt:
        return


def _follow(daemon: DaemonClient, news: SimpleQueue[Status | HomeAIError]) -> None:
    while True:
        try:
            for status in daemon.statuses():
                news.put(status)
            news.put(HomeAIError("the daemon ended"))
        except HomeAIError as error:
            news.put(error)
        time.sleep(RETRY_S)


def _latest(news: SimpleQueue[Status | HomeAIError]) -> Status | HomeAIError | None:
    latest = None
    try:
        while True:
            latest = news.get_nowait()
    except Empty:
        return latest


@contextmanager
def _keys() -> Iterator[None]:
    """Keys come one by one and are not echoed; as it was, afterwards. Without a keyboard there are none."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_quit_pressed() -> bool:
    """Waits a moment for a key. A keyboard that is gone wants nothing more."""
    if not sys.stdin.isatty():
        time.sleep(POLL_S)
        return False
    readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
    if not readable:
        return False
    keys = os.read(sys.stdin.fileno(), 64)
    return not keys or not QUIT.isdisjoint(keys)
