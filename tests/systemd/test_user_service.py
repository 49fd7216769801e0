"""The service of one person, installed without root into that person's service manager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.streaming import COMPLETIONS, exactly
from tests.systemd.container import CHECKOUT, VENV, Container

URL = "http://127.0.0.1:8700"
INSTALL = f"{CHECKOUT}/scripts/install-service", "--user", "--venv", VENV
UNINSTALL = f"{CHECKOUT}/scripts/uninstall-service", "--user"

AsAna = Callable[..., str]


@pytest.fixture
def as_ana(container: Container) -> AsAna:
    """Runs a command as somebody with a service manager."""
    if not any(Path("/usr").glob("lib*/**/security/pam_systemd.so")):
        pytest.skip("nobody gets a service manager here (Debian: libpam-systemd)")
    container.run("useradd", "--create-home", "ana")
    uid = container.run("id", "-u", "ana")
    container.run("systemctl", "start", f"user@{uid}.service")
    env = {"XDG_RUNTIME_DIR": f"/run/user/{uid}", "HOME": "/home/ana"}
    return lambda *command: container.run("runuser", "-u", "ana", "--", *command, env=env)


def test_it_needs_no_root_and_goes_without_a_trace(container: Container, as_ana: AsAna) -> None:
    as_ana(*INSTALL)
    assert as_ana("systemctl", "--user", "is-active", "homeai.service", "homeai.socket") == "active\nactive"
    assert httpx.post(URL + COMPLETIONS, json=exactly(3), timeout=120).is_success
    (engine,) = container.processes("homeai.engine.process")
    assert str(engine.uids().real) == container.run("id", "-u", "ana")

    as_ana(*UNINSTALL)
    assert container.processes("homeai.engine.process") == []
    assert container.shell("find ~ana/.config/systemd -name '*homeai*'") == ""
    assert "ledger.db" in container.shell("ls ~ana/.config/homeai/config.yaml ~ana/.local/share/homeai")

    as_ana(*UNINSTALL, "--purge")
    assert container.shell("find ~ana -name '*homeai*'") == ""
