"""Frames over the socket between front end and engine: a thread that reads, a thread that writes."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from homeai.messages import HEADER, Down, Up, down_decoder, encode_frame


@dataclass(frozen=True, slots=True)
class Prepared:
    """From a thread of the engine's own: what a request had to wait for is done, or has failed."""

    request_id: str


class Inbox:
    """Messages from the front end, in order, and what the engine's own threads have to tell its loop.

    `on_close` runs in the reading thread when the other side is gone.
    """

    def __init__(self, sock: socket.socket, on_close: Callable[[], None]) -> None:
        self._sock = sock
        self._on_close = on_close
        self._queue: queue.SimpleQueue[Down | Prepared] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def put(self, message: Prepared) -> None:
        """From any thread."""
        self._queue.put(message)

    def get(self, timeout_s: float) -> Down | Prepared | None:
        """The next message; blocks up to `timeout_s` for one."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def get_nowait(self) -> Down | Prepared | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def _read(self) -> None:
        try:
            with self._sock.makefile("rb") as stream:
                while (body := _read_frame(stream)) is not None:
                    self._queue.put(down_decoder.decode(body))
        except OSError:
            pass
        finally:
            self._on_close()


def _read_frame(stream: BinaryIO) -> bytes | None:
    """The next message's bytes; None when the other side is gone, be it in the middle of a frame."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    return body if len(body) == length else None


class Outbox:
    """Messages to the front end, in order. `put` never blocks: a slow reader costs memory here, not a step.

    A frame goes straight into the socket's buffer, which is cheaper than waking a thread; a thread takes what
    does not fit there. What is put by `hold` goes with what comes next: one read on the other side. One thread calls.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held: list[bytes] = []
        self._unsent: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def hold(self, message: Up) -> None:
        self._held.append(encode_frame(message))

    def put(self, message: Up) -> None:
        self.hold(message)
        self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        frame = b"".join(self._held)
        self._held.clear()
        with self._changed:
            if not self._unsent:
                frame = frame[self._send_now(frame) :]
            if frame:
                self._unsent.append(frame)
                self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left, then stop."""
        self.flush()
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _send_now(self, frame: bytes) -> int:
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)  # the reader is gone; the inbox notices and ends the process

    def _write(self) -> None:
        while (frame := self._next_unsent()) is not None:
            with contextlib.suppress(OSError):
                self._sock.sendall(frame)
            with self._changed:
                self._unsent.popleft()

    def _next_unsent(self) -> bytes | None:
        """Stays in the queue until it is sent: nothing may overtake it."""
        with self._changed:
            while not self._unsent and not self._is_closing:
                self._changed.wait()
            return self._unsent[0] if self._unsent else None
