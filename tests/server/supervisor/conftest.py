"""A house whose supervisor waits for nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from homeai.server import supervisor as supervisor_module
from tests.server.supervisor.house import House


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    monkeypatch.setattr(supervisor_module, "LOOK_AGAIN_S", (0.0,))
    monkeypatch.setattr(supervisor_module, "WATCH_INTERVAL_S", 0.0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """With a first child that loads."""
    house = House()
    house.supervisor.spawn()
    task = house.supervisor.start()
    yield house
    await house.supervisor.stop()
    assert task.done()
    assert task.exception() is None
