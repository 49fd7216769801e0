"""The unit files mean to systemd what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from homeai.config import Config
from homeai.server.activation import stream

UNITS = Path(__file__).parent.parent / "systemd"
UNIT = UNITS / "homeai.service"
MACHINES = "homeai.service", "homeai.socket", "homeai.slice", "homeai-sleep.service"
ONES = "user/homeai.service", "user/homeai.socket", "homeai.slice"

systemd_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def settings(unit: Path = UNIT) -> dict[str, list[str]]:
    """Every setting and its values, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@systemd_analyze
@pytest.mark.parametrize(("scope", "units"), [("--system", MACHINES), ("--user", ONES)])
def test_systemd_finds_nothing_to_say_about_the_units(scope: str, units: tuple[str, ...], tmp_path: Path) -> None:
    copies = [tmp_path / Path(unit).name for unit in units]
    for unit, copy in zip(units, copies, strict=True):  # not installed here
        copy.write_text(re.sub(r"/opt/homeai/venv/bin/\w+", "/bin/true", (UNITS / unit).read_text()))
    command = ["systemd-analyze", "verify", scope, "--man=no", *copies]
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    verify = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (verify.returncode, verify.stdout, verify.stderr) == (0, "", "")


@systemd_analyze
def test_service_is_little_exposed() -> None:
    """Below 2.0 of 10: the network, the GPU and executable memory are what it cannot do without."""
    security = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager"]
    assess = subprocess.run([*security, UNIT], capture_output=True, text=True)
    assert assess.returncode == 0, assess.stdout


def test_service_speaks_readiness_and_is_watched() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert unit["NotifyAccess"] == ["main"]
    assert unit["WatchdogSec"] == ["120"]


def test_wrong_configuration_or_model_is_not_a_restart_loop() -> None:
    assert settings()["RestartPreventExitStatus"] == ["2 3"]


def test_service_runs_as_its_own_user_and_writes_only_its_state() -> None:
    unit = settings()
    assert unit["User"] == ["homeai"]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["StateDirectory"] == ["homeai"]
    assert "ReadWritePaths" not in unit


def test_only_nvidia_devices_are_open() -> None:
    unit = settings()
    assert unit["DevicePolicy"] == ["closed"]
    assert unit["DeviceAllow"] == ["char-nvidia* rwm"]


def test_connections_wait_during_a_restart_and_one_unit_stops_everything() -> None:
    assert settings()["Requires"] == ["homeai.socket"]
    assert "homeai.socket" in settings()["After"]
    assert (UNITS / "homeai.socket").read_text() == (UNITS / "user" / "homeai.socket").read_text()


def test_socket_listens_where_the_settings_say_by_default() -> None:
    (address,) = Config().server.addresses
    assert settings(UNITS / "homeai.socket")["ListenStream"] == [stream(address)]


def test_machine_waits_for_us_to_leave_the_gpu_before_it_sleeps_but_not_for_ever() -> None:
    sleep = settings(UNITS / "homeai-sleep.service")
    assert (sleep["Before"], sleep["WantedBy"]) == (["sleep.target"], ["sleep.target"])
    assert int(sleep["TimeoutStartSec"][0]) > Config().residency.finish_timeout_s


def test_what_people_wrote_is_in_no_core_dump() -> None:
    assert settings()["LimitCORE"] == ["0"]
    assert settings(UNITS / "user" / "homeai.service")["LimitCORE"] == ["0"]


def test_games_go_before_the_service() -> None:
    slice_ = settings(UNITS / "homeai.slice")
    assert int(slice_["CPUWeight"][0]) < 100
    assert int(slice_["IOWeight"][0]) < 100
