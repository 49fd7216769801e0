"""A real `homeai serve`, for black-box tests."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import psutil

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
PATIENCE_S = 120.0
POLL_S = 0.05

T = TypeVar("T")


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    url: str
    data_dir: Path
    log: list[str] = field(default_factory=list)
    _log_reader: threading.Thread = field(init=False, repr=False)

    @classmethod
    def start(cls, model_path: Path, data_dir: Path, *settings: str, port: int = 0) -> Daemon:
        """A daemon that serves; on a free port unless one is given."""
        daemon = cls.launch(model_path, data_dir, *settings, port=port)
        try:
            daemon.url = daemon._wait_for_url()
        except RuntimeError:
            daemon.close()
            raise
        return daemon

    @classmethod
    def launch(cls, model_path: Path, data_dir: Path, *settings: str, port: int) -> Daemon:
        """Started and not waited for: it may never be ready."""
        command = [sys.executable, "-m", "homeai", "serve", "--port", str(port), "--data-dir", str(data_dir)]
        command += ["--model", str(model_path), *(arg for setting in settings for arg in ("--set", setting))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        daemon = cls(process, f"http://127.0.0.1:{port}", data_dir)
        daemon._log_reader = threading.Thread(target=daemon._read_log, daemon=True)
        daemon._log_reader.start()
        return daemon

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=300, **options)  # type: ignore[arg-type]

    def async_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=300, limits=httpx.Limits(max_connections=None))

    def status(self) -> Any:
        """What /api/status says now."""
        return httpx.get(f"{self.url}/api/status", timeout=120).json()

    def live(self, source: str) -> Any:
        """The first live request of a source as the status shows it, or None."""
        return next((r for r in self.status()["requests"] if r["source"] == source), None)

    def ledger_rows(self, source: str) -> list[dict[str, Any]]:
        """The ledger's rows of a source, oldest first."""
        with closing(sqlite3.connect(self.data_dir / "ledger.db")) as database:
            database.row_factory = sqlite3.Row
            query = "SELECT * FROM requests WHERE source = ? ORDER BY arrival"
            return [dict(row) for row in database.execute(query, [source])]

    @property
    def engines(self) -> list[psutil.Process]:
        """The engines among the daemon's living children: one, unless it is down."""
        return self._children("homeai.engine.process")

    @property
    def embedders(self) -> list[psutil.Process]:
        """The processes that make embeddings among its living children: one, unless nobody asked for any lately."""
        return self._children("homeai.embedding.process")

    def _children(self, module: str) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if is_alive(child) and module in child.cmdline()]

    def keys(self, *args: str) -> str:
        """What `homeai keys …` prints."""
        command = [sys.executable, "-m", "homeai", "keys", *args, "--data-dir", str(self.data_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.strip()

    def stop(self) -> int:
        """SIGTERM and the exit code; SIGKILL for what does not go."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.stop()
        self._log_reader.join(STOP_TIMEOUT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def _wait_for_url(self) -> str:
        assert self.process.stdout is not None
        timer = threading.Timer(START_TIMEOUT_S, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if match := re.search(r"status page +(https?://\S+?)/$", line.rstrip()):
                    return match[1]
        finally:
            timer.cancel()
        raise RuntimeError("the daemon did not start:\n" + "\n".join(self.log))


def is_alive(process: psutil.Process) -> bool:
    """A zombie is not: it waits for nothing but its parent."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def eventually(probe: Callable[[], T]) -> T:
    """The first result of `probe` that is true. For what the daemon does by itself, soon."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := probe()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s"
        time.sleep(POLL_S)
    return result


async def eventually_async(probe: Callable[[], T]) -> T:
    """`eventually`, while other tasks of the test go on."""
    async with asyncio.timeout(PATIENCE_S):
        while not (result := probe()):  # noqa: ASYNC110 (another process cannot set an event)
            await asyncio.sleep(POLL_S)
    return result
