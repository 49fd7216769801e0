"""Frames over the socket between front end and engine: a thread that reads, a thread that writes."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import BinaryIO

from homeai.messages import HEADER, Down, Up, down_decoder, encode_frame


class Inbox:
    """Messages from the front end, in order. `on_close` runs in the reading thread when the other side is gone."""

    def __init__(self, sock: socket.socket, on_close: Callable[[], None]) -> None:
        self._sock = sock
        self._on_close = on_close
        self._queue: queue.SimpleQueue[Down] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def get(self, timeout_s: float) -> Down | None:
        """The next message; blocks up to `timeout_s` for one."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def get_nowait(self) -> Down | None:
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
    """Messages to the front end. `put` never blocks: a slow reader costs memory here, not a step."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: queue.SimpleQueue[Up | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def put(self, message: Up) -> None:
        self._queue.put(message)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is left, then stop."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._sock.sendall(encode_frame(message))
            except OSError:
                return  # the reader is gone; the inbox notices and ends the process
