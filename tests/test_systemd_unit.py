"""The unit file means to systemd what it says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parent.parent / "systemd" / "homeai.service"

systemd_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def settings() -> dict[str, list[str]]:
    """Every setting and its values, in order."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@systemd_analyze
def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/homeai/venv/bin/homeai", "/bin/true"))  # not installed here
    verify = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
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
