"""Healthy means that a request is answered: by a model that is there and a loop that moves. Nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from homeai.backends.llamacpp.binding import supports_gpu
from tests.daemon import Daemon, eventually, free_port
from tests.streaming import COMPLETIONS, exactly


def health(daemon: Daemon, path: str = "/health") -> httpx.Response:
    return httpx.get(f"{daemon.url}{path}", timeout=60)


@pytest.mark.skipif(supports_gpu(), reason="this machine has a GPU")
def test_gpu_that_is_gone_is_said_in_words_for_programs(model_path: Path, tmp_path: Path) -> None:
    with Daemon.launch(model_path, tmp_path, "model.device=cuda", port=free_port()) as daemon:
        eventually(lambda: any("the device is unavailable" in line for line in daemon.log))
        for path in ("/health", "/health/ready"):
            assert (health(daemon, path).status_code, health(daemon, path).json()["reason"]) == (503, "gpu_unavailable")
        refused = httpx.post(f"{daemon.url}{COMPLETIONS}", json=exactly(1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gpu_unavailable")


def test_hung_engine_is_not_healthy_until_another_one_is_there(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("residency.heartbeat_timeout_s=2", "model.num_threads=1")
    (engine,) = daemon.engines
    assert health(daemon).json() == health(daemon, "/health/ready").json() == {"status": "ok"}
    engine.suspend()
    eventually(lambda: health(daemon).status_code == 503)
    eventually(lambda: health(daemon).is_success)
    assert [child.pid for child in daemon.engines] != [engine.pid]


def test_model_that_fails_is_not_healthy_and_says_why(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("residency.max_restarts=0", "model.num_threads=1")
    (engine,) = daemon.engines
    engine.kill()
    eventually(lambda: daemon.status()["state"] == "failed")
    assert health(daemon).status_code == 503
    assert "exit code -9" in health(daemon).json()["error"]["message"]
    assert httpx.post(f"{daemon.url}/api/admin/load").is_success
    eventually(lambda: health(daemon).is_success)
