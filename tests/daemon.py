"""A real `homeai serve` on a free port, for black-box tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    url: str
    log: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, model_path: Path, data_dir: Path, *settings: str) -> Daemon:
        command = [sys.executable, "-m", "homeai", "serve", "--port", "0", "--data-dir", str(data_dir)]
        command += ["--model", str(model_path), *(arg for setting in settings for arg in ("--set", setting))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        daemon = cls(process, "")
        threading.Thread(target=daemon._read_log, daemon=True).start()
        daemon.url = daemon._wait_for_url()
        return daemon

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, **options)  # type: ignore[arg-type]

    def async_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=120, limits=httpx.Limits(max_connections=None))

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
        self.stop()
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
                if match := re.search(r"status page +(http://\S+?)/$", line.rstrip()):
                    return match[1]
        finally:
            timer.cancel()
        raise RuntimeError("the daemon did not start:\n" + "\n".join(self.log))
