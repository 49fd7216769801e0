"""The service as a home runs it: installed by scripts/install-service into a real systemd, with the real model.

All of it happens in one container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.streaming import COMPLETIONS, Stream, exactly
from tests.systemd.container import CHECKOUT, VENV, Container, eventually

URL = "http://127.0.0.1:8700"
HOMEAI = f"{VENV}/bin/homeai"
UNIT = "homeai.service"
INSTALL = f"{CHECKOUT}/scripts/install-service", "--venv", VENV
UNINSTALL = f"{CHECKOUT}/scripts/uninstall-service"
TABLET = "hai_" + "0123456789" * 4
KEY = {"Authorization": f"Bearer {TABLET}"}

PIN = "Answer briefly. " * 120  # a warm-up that can be seen
SETTINGS = {
    "server": {"drain_timeout_s": 90, "auth": "keys"},
    "model": {"num_threads": 1},
    "scheduler": {"kv_cells": 4096, "max_num_seqs": 2},
    "residency": {"heartbeat_timeout_s": 6},
    "classes": {"interactive": {"queue_timeout_s": 600}},
    "pins": [{"name": "house", "system": PIN}],
}
IMPATIENT = """[Service]
WatchdogSec=8
TimeoutAbortSec=3
"""
# In place of what suspends the machine: writes down how homeai is while it would sleep.
SUSPEND = f"""[Service]
ExecStart=
EnvironmentFile=/etc/homeai/sleep.env
ExecStart=/bin/sh -c '{VENV}/bin/homeai status > /run/asleep'
"""


class Service:
    def __init__(self, container: Container) -> None:
        self.container = container

    @property
    def pid(self) -> int:
        """In the container; 0 while nothing runs."""
        return int(self.container.show(UNIT, "MainPID"))

    @property
    def front(self) -> psutil.Process:
        return self.container.process(self.pid)

    @property
    def engines(self) -> list[psutil.Process]:
        return self.container.processes("homeai.engine.process")

    @property
    def state(self) -> str:
        return self.container.show(UNIT, "ActiveState")

    @property
    def num_restarts(self) -> int:
        return int(self.container.show(UNIT, "NRestarts"))

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.container.run("systemctl", *words, check=check)

    def status(self) -> Any:
        return httpx.get(f"{URL}/api/status", headers=KEY, timeout=120).json()

    def answers(self) -> bool:
        """Asked over a connection of its own, however long it has to wait."""
        answer = httpx.post(URL + COMPLETIONS, json=exactly(3), headers=KEY, timeout=120)
        return answer.is_success and answer.json()["usage"]["completion_tokens"] == 3

    def journal(self) -> list[tuple[int, str]]:
        """The priorities and texts of what the service logged."""
        lines = self.container.run("journalctl", "-u", UNIT, "-o", "json", "--no-pager").splitlines()
        return [(int(line["PRIORITY"]), line["MESSAGE"]) for line in map(json.loads, lines)]

    def logged(self, words: str) -> bool:
        return any(words in message for _, message in self.journal())


@pytest.fixture(scope="module")
def installed(container: Container) -> Service:
    container.write("/etc/homeai/config.yaml", json.dumps(SETTINGS))
    container.write("/etc/homeai/keys.yaml", f"- {{name: tablet, key: {TABLET}, admin: true}}", mode="0600")
    container.write("/etc/homeai/sleep.env", f"HOMEAI_API_KEY={TABLET}", mode="0600")
    container.write("/etc/systemd/system/homeai.service.d/impatient.conf", IMPATIENT)
    container.write("/etc/systemd/system/systemd-suspend.service.d/test.conf", SUSPEND)
    container.run(*INSTALL, "--no-start")
    return Service(container)


@pytest.fixture
def service(installed: Service) -> Iterator[Service]:
    """It runs, and may be started as often as one that never was. pytest shows the journal when the test fails."""
    installed.systemctl("reset-failed", UNIT, "homeai.socket")
    installed.systemctl("start", UNIT)
    yield installed
    print(installed.container.run("journalctl", "-n", "60", "--no-pager", check=False))


@contextlib.asynccontextmanager
async def streaming(num_tokens: int) -> Any:
    """A stream under way."""
    async with httpx.AsyncClient(base_url=URL, headers=KEY, timeout=300) as client:
        stream = Stream(client, exactly(num_tokens))
        await stream.begun()
        assert not stream.errors
        yield stream
        await stream.ended()
        assert (stream.errors, stream.num_tokens, stream.is_done) == ([], num_tokens, True)


# ---- start ---------------------------------------------------------------------------------------------


def test_ready_only_when_resident_and_who_came_before_is_answered(service: Service) -> None:
    service.systemctl("stop", UNIT)
    service.systemctl("start", "--no-block", UNIT)
    seen = []
    with httpx.stream("POST", URL + COMPLETIONS, json=exactly(3), headers=KEY, timeout=120) as early:
        while (state := service.state) != "active":
            seen.append((state, service.container.show(UNIT, "StatusText")))
            assert state in ("inactive", "activating"), seen
        assert service.status()["state"] == "resident"
        assert json.loads(early.read())["usage"]["completion_tokens"] == 3
    assert service.container.show(UNIT, "StatusText").startswith("resident: ")


def test_it_says_that_it_warms_up_while_systemd_waits(service: Service) -> None:
    service.systemctl("restart", "--no-block", UNIT)
    eventually(lambda: service.container.show(UNIT, "StatusText").startswith("warming: "))
    assert service.state == "activating"
    eventually(lambda: service.state == "active")
    assert service.status()["state"] == "resident"


def test_service_is_little_exposed(service: Service) -> None:
    """At most 2.5 of 10, as this systemd sees it running."""
    service.container.run("systemd-analyze", "security", "--threshold=25", "--no-pager", UNIT)


def test_it_runs_as_its_own_user_in_its_own_slice(service: Service) -> None:
    assert service.container.show(UNIT, "Slice") == "homeai.slice"
    (engine,) = service.engines
    user = service.container.run("id", "-u", "homeai")
    assert {str(process.uids().real) for process in (service.front, engine)} == {user}


def test_journal_has_levels(service: Service) -> None:
    levels = {message.split(": ")[0]: priority for priority, message in service.journal() if "state: " in message}
    assert levels["homeai.supervisor"] == 6
    assert 4 in {priority for priority, message in service.journal() if message.startswith("llama.cpp: ")}


def test_key_in_a_file_of_root_is_a_key(service: Service) -> None:
    assert service.container.run("stat", "-c", "%U %a", "/etc/homeai/keys.yaml") == "root 600"
    assert httpx.post(URL + COMPLETIONS, json=exactly(1), timeout=120).status_code == 401
    assert service.answers()


# ---- what fails ----------------------------------------------------------------------------------------


async def test_killed_engine_is_replaced_and_its_stream_goes_on(service: Service) -> None:
    pid, (engine,) = service.pid, service.engines
    async with streaming(60):
        engine.kill()
    assert (service.pid, service.state, service.num_restarts) == (pid, "active", 0)
    assert (3, True) in {(priority, "the engine died" in message) for priority, message in service.journal()}


def test_hung_engine_is_replaced_by_its_supervisor(service: Service) -> None:
    pid, (engine,) = service.pid, service.engines
    engine.suspend()
    assert service.answers()
    assert not engine.is_running()
    assert (service.pid, service.state, service.num_restarts) == (pid, "active", 0)


def test_killed_front_end_comes_back_and_nobody_is_refused(service: Service) -> None:
    front, (engine,) = service.front, service.engines
    front.kill()
    assert service.answers()
    assert not engine.is_running()
    assert (service.num_restarts, len(service.engines)) == (1, 1)


def test_hung_front_end_is_replaced_by_the_watchdog(service: Service) -> None:
    front, (engine,) = service.front, service.engines
    front.suspend()
    assert service.answers()
    assert not engine.is_running()
    assert service.logged("Watchdog timeout")
    assert (service.num_restarts, len(service.engines)) == (1, 1)


# ---- stop ----------------------------------------------------------------------------------------------


async def test_restart_drains_and_whoever_asks_meanwhile_is_answered(service: Service) -> None:
    pid = service.pid
    async with streaming(600), httpx.AsyncClient(base_url=URL, headers=KEY, timeout=300) as client:
        service.systemctl("restart", "--no-block", UNIT)
        eventually(lambda: service.container.show(UNIT, "StatusText").startswith("draining: "))
        assert service.pid == pid
        answer = await client.post(COMPLETIONS, json=exactly(5))
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert service.pid not in (0, pid)
    assert service.num_restarts == 0


def test_stopping_the_socket_stops_everything_in_order(service: Service) -> None:
    service.systemctl("stop", "homeai.socket")
    assert (service.state, service.container.show(UNIT, "Result")) == ("inactive", "success")
    assert not service.container.processes(HOMEAI)
    assert service.engines == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{URL}/health")
    service.systemctl("start", UNIT)
    assert service.status()["state"] == "resident"


# ---- settings ------------------------------------------------------------------------------------------


def test_addresses_other_than_the_sockets_are_one_line_and_no_restart_loop(service: Service) -> None:
    settings = SETTINGS | {"server": {"port": 8701, "auth": "keys"}}
    service.container.write("/etc/homeai/config.yaml", json.dumps(settings))
    service.systemctl("restart", UNIT, check=False)
    assert (service.state, service.container.show(UNIT, "ExecMainStatus")) == ("failed", "2")
    assert service.num_restarts == 0
    assert service.logged(
        "homeai: systemd (homeai.socket) listens on 127.0.0.1:8700, but the settings (server.host, server.port, "
        "server.listen) say 127.0.0.1:8701: run scripts/install-service again"
    )

    with pytest.raises(httpx.TransportError):  # starts it anew, but not for ever
        httpx.get(f"{URL}/health", timeout=120)
    assert service.container.show("homeai.socket", "Result") == "service-start-limit-hit"

    service.systemctl("reset-failed", UNIT)
    service.container.run(*INSTALL)
    assert httpx.get("http://127.0.0.1:8701/health", timeout=120).is_success

    service.container.write("/etc/homeai/config.yaml", json.dumps(SETTINGS))
    service.container.run(*INSTALL)
    assert service.answers()


def test_installing_again_changes_nothing_and_drops_nobody(service: Service) -> None:
    units = (
        "find /etc/systemd/system /etc/homeai /etc/polkit-1 -name '*homeai*' -o -path '*homeai*' | sort | xargs ls -ld"
    )
    units = f"{units} --time-style=+"
    before = service.container.shell(units)
    listens_since = service.container.show("homeai.socket", "ActiveEnterTimestampMonotonic")
    service.container.run(*INSTALL)
    assert service.container.shell(units) == before
    assert service.container.show("homeai.socket", "ActiveEnterTimestampMonotonic") == listens_since


# ---- sleep ---------------------------------------------------------------------------------------------


async def test_machine_sleeps_without_the_model_and_streams_go_on_afterwards(service: Service) -> None:
    pid = service.pid
    async with streaming(600):
        await asyncio.to_thread(service.systemctl, "start", "suspend.target")
        assert "yielded" in service.container.run("cat", "/run/asleep")
    assert service.pid == pid
    eventually(lambda: service.status()["state"] == "resident")
    eventually(lambda: service.container.show("homeai-sleep.service", "ActiveState") == "inactive")


def test_model_that_its_owner_sent_away_is_not_loaded_by_waking_up(service: Service) -> None:
    service.container.run(HOMEAI, "unload", "--key", TABLET)
    service.systemctl("start", "suspend.target")
    eventually(lambda: service.container.show("suspend.target", "ActiveState") == "inactive")
    assert service.status()["state"] == "sleeping"
    service.container.run(HOMEAI, "load", "--key", TABLET)


async def test_machine_is_kept_awake_while_answers_are_written(service: Service) -> None:
    if service.container.show("systemd-logind.service", "ActiveState") != "active":
        pytest.skip("logind is not here")

    def locks() -> list[str]:
        return [line for line in service.container.run("systemd-inhibit", "--list").splitlines() if "homeai" in line]

    eventually(lambda: not locks())
    async with streaming(600):
        lock = await asyncio.to_thread(eventually, lambda: next(iter(locks()), ""))
        assert " sleep " in lock
        assert " block" in lock
    eventually(lambda: not locks())


# ---- away with it --------------------------------------------------------------------------------------


def test_uninstalling_leaves_nothing_but_settings_and_data(service: Service) -> None:
    container = service.container
    container.run(UNINSTALL)
    assert container.processes(HOMEAI) == []
    assert service.engines == []
    assert container.run("systemctl", "list-units", "--plain", "--no-legend", "homeai*") == ""
    assert container.run("systemctl", "list-unit-files", "--no-legend", "homeai*", check=False) == ""
    assert container.shell("find /etc/systemd /etc/polkit-1 -name '*homeai*'; ls -d /opt/homeai || true") == ""
    assert "models" in container.shell("ls /etc/homeai/config.yaml; ls /var/lib/homeai; id -un homeai")

    container.run(UNINSTALL, "--purge")
    container.shell("[[ ! -e /etc/homeai && ! -e /var/lib/homeai ]] && ! id homeai")
    container.run(UNINSTALL, "--purge")
