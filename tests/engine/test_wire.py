"""Frames over a socket pair."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from homeai.engine.wire import Inbox, Outbox
from homeai.messages import HEADER, AbortRequests, Down, Heartbeat, Ping, Shutdown, Up, encode_frame, up_decoder

TIMEOUT_S = 60.0


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    for sock in (ours, theirs):
        sock.close()


def received(sock: socket.socket, count: int) -> list[Up]:
    with sock.makefile("rb") as stream:
        return [up_decoder.decode(stream.read(HEADER.unpack(stream.read(HEADER.size))[0])) for _ in range(count)]


def test_messages_arrive_in_order(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    inbox = Inbox(theirs, on_close=lambda: None)
    sent: list[Down] = [Ping(), AbortRequests(["a", "b"]), Shutdown()]
    for message in sent:
        ours.sendall(encode_frame(message))
    assert [inbox.get(TIMEOUT_S) for _ in sent] == sent
    assert inbox.get_nowait() is None


def test_frame_may_come_in_pieces(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    inbox = Inbox(theirs, on_close=lambda: None)
    message = AbortRequests([f"request-{i}" for i in range(20)])
    for byte in encode_frame(message):
        ours.sendall(bytes([byte]))
    assert inbox.get(TIMEOUT_S) == message


def test_waiting_for_a_message_ends_after_the_timeout(sockets: tuple[socket.socket, socket.socket]) -> None:
    inbox = Inbox(sockets[1], on_close=lambda: None)
    assert inbox.get(0.001) is None


def test_closed_socket_is_noticed(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    closed = threading.Event()
    inbox = Inbox(theirs, on_close=closed.set)
    ours.sendall(encode_frame(Ping()))
    ours.close()
    assert closed.wait(TIMEOUT_S)
    assert inbox.get(TIMEOUT_S) == Ping(), "what came before is not lost"


@pytest.mark.parametrize("num_bytes", [2, 4, 7])
def test_frame_cut_short_is_a_closed_socket(sockets: tuple[socket.socket, socket.socket], num_bytes: int) -> None:
    ours, theirs = sockets
    closed = threading.Event()
    inbox = Inbox(theirs, on_close=closed.set)
    ours.sendall(encode_frame(AbortRequests(["a"]))[:num_bytes])
    ours.close()
    assert closed.wait(TIMEOUT_S)
    assert inbox.get_nowait() is None


def test_messages_leave_in_order(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    outbox = Outbox(theirs)
    for step in range(100):
        outbox.put(Heartbeat(step))
    assert received(ours, 100) == [Heartbeat(step) for step in range(100)]
    outbox.close()


def test_what_is_held_leaves_with_the_next(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    outbox = Outbox(theirs)
    outbox.hold(Heartbeat(1))
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    ours.setblocking(True)
    outbox.put(Heartbeat(2))
    outbox.hold(Heartbeat(3))
    outbox.close()
    assert received(ours, 3) == [Heartbeat(1), Heartbeat(2), Heartbeat(3)]


def test_slow_reader_blocks_nobody(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    outbox = Outbox(theirs)
    for step in range(50_000):  # far more than the socket's buffer holds, and nobody reads
        outbox.put(Heartbeat(step))
    assert received(ours, 50_000)[-1] == Heartbeat(49_999)
    outbox.close()


def test_closing_sends_what_is_left(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    outbox = Outbox(theirs)
    outbox.put(Heartbeat(1))
    outbox.close()
    theirs.close()
    assert received(ours, 1) == [Heartbeat(1)]


def test_reader_that_is_gone_harms_nobody(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    outbox = Outbox(theirs)
    ours.close()
    for step in range(10):
        outbox.put(Heartbeat(step))
    outbox.close()
