"""The JavaScript SDKs work against the daemon as they are. The cases are in tests/js, one script for each SDK."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.daemon import Daemon

SCRIPTS = Path(__file__).parent.parent / "js"
NODE = shutil.which("node")
RUN_TIMEOUT_S = 600

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not here; .ci/run installs it")


def run(command: list[str], folder: Path, timeout_s: float, **environment: str) -> str:
    """What the command prints. A failure shows all of it."""
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.test.mjs")))
def test_sdk_does_all_that_its_script_asks(daemon: Daemon, js_scripts: Path, script: str) -> None:
    command = [str(NODE), "--test", "--test-reporter=tap", script]
    report = run(command, js_scripts, RUN_TIMEOUT_S, HOMEAI_URL=daemon.url)
    num_tests = (SCRIPTS / script).read_text().count('\ntest("')
    assert f"\n# pass {num_tests}\n" in report, report
