"""Sockets that systemd keeps open: who connects while the daemon restarts waits, and is answered."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.daemon import STOP_TIMEOUT_S, Daemon, eventually_async
from tests.streaming import COMPLETIONS, Stream, exactly

# Descriptor 3 is where they begin, and the process id is known only now.
HANDED_OVER = 'exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=homeai.socket "$@" 3<&"$FD"'


@pytest.fixture
def kept() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def launch(kept: socket.socket, model_path: Path, data_dir: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "homeai", "serve", "--data-dir", str(data_dir), "--model", str(model_path), *flags]
    return subprocess.Popen(
        ["bash", "-c", HANDED_OVER, "launch", *command],
        env=os.environ | {"FD": str(kept.fileno())},
        pass_fds=[kept.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Kept(Daemon):
    @classmethod
    def on(cls, kept: socket.socket, model_path: Path, data_dir: Path) -> Kept:
        host, port = kept.getsockname()
        process = launch(kept, model_path, data_dir, "--port", str(port), "--set", "server.drain_timeout_s=300")
        daemon = cls(process, f"http://{host}:{port}", data_dir)
        daemon._log_reader = threading.Thread(target=daemon._read_log, daemon=True)
        daemon._log_reader.start()
        return daemon


async def test_who_asks_during_a_restart_is_answered_by_the_next_daemon(
    kept: socket.socket, model_path: Path, tmp_path: Path
) -> None:
    url = "http://{}:{}".format(*kept.getsockname())
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        with Kept.on(kept, model_path, tmp_path) as daemon:
            await client.get("/health")  # its connection is kept alive
            stream = Stream(client, exactly(60))
            await stream.begun()
            daemon.process.send_signal(signal.SIGTERM)
            await eventually_async(lambda: any("state: draining" in line for line in daemon.log))
            asked = asyncio.create_task(client.post(COMPLETIONS, json=exactly(3)))
            assert (await stream.ended()).num_tokens == 60
            assert stream.is_done
            assert await asyncio.to_thread(daemon.process.wait, STOP_TIMEOUT_S) == 0
        assert not asked.done()
        with Kept.on(kept, model_path, tmp_path):
            assert (await asked).json()["usage"]["completion_tokens"] == 3
            assert (await client.get("/health")).is_success


def test_settings_that_say_another_address_are_one_line(kept: socket.socket, model_path: Path, tmp_path: Path) -> None:
    refused = launch(kept, model_path, tmp_path, "--port", "1")
    output, complaint = refused.communicate(timeout=STOP_TIMEOUT_S)
    assert (refused.returncode, output, complaint.count("\n")) == (2, "", 1)
    assert "say 127.0.0.1:1: run scripts/install-service again" in complaint


def test_socket_that_does_not_listen_is_one_line(model_path: Path, tmp_path: Path) -> None:
    with socket.socket() as sock:
        refused = launch(sock, model_path, tmp_path)
        output, complaint = refused.communicate(timeout=STOP_TIMEOUT_S)
    assert (refused.returncode, output, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith("homeai: homeai.socket: file descriptor 3 is no TCP socket that listens")
