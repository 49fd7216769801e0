"""What systemd hears: every word of one daemon's life, and of one that cannot load its model."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from homeai.server import notify
from homeai.server.notify import Notifier

TIMEOUT_S = 120.0


class ServiceManager:
    """Listens all the time, as systemd does; keeps what it was told in order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.notes: list[dict[str, str]] = []  # those that a test has seen
        self._told: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def next_note(self) -> dict[str, str]:
        self.notes.append(self._told.get(timeout=TIMEOUT_S))
        return self.notes[-1]

    def wait_for(self, key: str, value: str) -> None:
        while self.next_note().get(key) != value:
            pass

    def close(self) -> None:
        """What is still to be read becomes notes, too."""
        Notifier(self.address).send(END=1)
        self._thread.join(TIMEOUT_S)
        self._socket.close()
        while not self._told.empty():
            self.next_note()

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _listen(self) -> None:
        while (text := self._socket.recv(65536).decode()) != "END=1":
            self._told.put(dict(line.split("=", 1) for line in text.split("\n")))


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceManager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@homeai-test-{os.getpid()}"
    with ServiceManager(address) as manager:
        yield manager


# ---- a note --------------------------------------------------------------------------------------------


def test_note_has_a_line_for_each_field(manager: ServiceManager) -> None:
    Notifier(manager.address).send(READY=1, STATUS="serving")
    assert manager.next_note() == {"READY": "1", "STATUS": "serving"}


def test_status_cannot_say_more_than_a_status(manager: ServiceManager) -> None:
    Notifier(manager.address).send(STATUS="broken:\nREADY=1")
    assert manager.next_note() == {"STATUS": "broken: READY=1"}


def test_manager_that_does_not_listen_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "TIMEOUT_S", 0.0)
    notifier = Notifier(str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "notify"))
        for _ in range(10_000):  # far more than its queue holds
            notifier.send(WATCHDOG=1)
        assert deaf.recv(100) == b"WATCHDOG=1"


def test_manager_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "gone")).send(READY=1)


def test_address_and_watchdog_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    notifier = Notifier()
    assert (notifier.is_active, notifier.watchdog_s) == (True, 1.5)


def test_outside_of_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    notifier = Notifier()
    assert (notifier.is_active, notifier.watchdog_s) == (False, 0.0)
    notifier.send(READY=1)


# ---- a daemon's life -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Life:
    notes: list[dict[str, str]]
    health_when_ready: int | None
    exit_code: int

    def first(self, key: str, value: str | None = None) -> int:
        """Position of the first note that says so."""
        return next(i for i, note in enumerate(self.notes) if key in note and value in (None, note[key]))


def live(model: Path, folder: Path) -> Life:
    """From the start to READY=1, a few beats, SIGTERM, the end; or to an earlier end of its own."""
    command = [sys.executable, "-m", "homeai", "serve", "--port", "0", "--model", str(model), "--data-dir", str(folder)]
    with ServiceManager(str(folder / "notify")) as manager:
        environment = os.environ | {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "300000"}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            guard = threading.Timer(TIMEOUT_S, process.kill)
            guard.start()
            health = _watch(process, manager)
            process.communicate()
            guard.cancel()
    return Life(manager.notes, health, process.returncode)


def _watch(process: subprocess.Popen[str], manager: ServiceManager) -> int | None:
    """Its health when it says that it serves, if it does; asked to stop after that."""
    assert process.stderr is not None
    url = next((match[1] for line in process.stderr if (match := re.search(r"serving on (\S+)", line))), None)
    if url is None:
        return None
    manager.wait_for("READY", "1")
    health = httpx.get(f"{url}/health").status_code
    for _ in range(3):
        manager.wait_for("WATCHDOG", "1")
    process.send_signal(signal.SIGTERM)
    return health


@pytest.fixture(scope="module")
def life(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Life:
    return live(model_path, tmp_path_factory.mktemp("notify"))


def test_load_is_told_and_asks_for_the_time_it_needs(life: Life) -> None:
    assert life.first("STATUS") < life.first("READY")
    assert life.notes[life.first("STATUS")]["STATUS"].startswith("loading: ")
    assert life.first("EXTEND_TIMEOUT_USEC") < life.first("READY")


def test_ready_comes_once_when_the_model_is_resident_and_not_before(life: Life) -> None:
    resident = next(i for i, note in enumerate(life.notes) if note.get("STATUS", "").startswith("resident: "))
    assert resident < life.first("READY", "1")
    assert life.health_when_ready == 200
    assert sum("READY" in note for note in life.notes) == 1


def test_watchdog_is_fed_all_the_time(life: Life) -> None:
    ready, stopping = life.first("READY"), life.first("STOPPING")
    assert sum("WATCHDOG" in note for note in life.notes[ready:stopping]) >= 3


def test_stop_is_told_and_is_no_failure(life: Life) -> None:
    stopping = life.first("STOPPING", "1")
    assert stopping > life.first("READY")
    assert int(life.notes[stopping]["EXTEND_TIMEOUT_USEC"]) > 30e6  # the drain, and more
    assert life.notes[-1] == {"STATUS": life.notes[-1]["STATUS"]}
    assert life.notes[-1]["STATUS"].startswith("stopped: ")
    assert life.exit_code == 0


def test_model_that_cannot_be_loaded_is_never_ready_and_ends_with_its_own_code(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and then nothing")
    life = live(broken, tmp_path)
    assert all("READY" not in note for note in life.notes)
    assert any("broken.gguf" in note.get("STATUS", "") for note in life.notes)
    assert life.exit_code == 3  # which the unit does not restart
