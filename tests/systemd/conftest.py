from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.container import Container, obstacle


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """One for all tests of a file, whose connections go there."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    with Container(tmp_path_factory.mktemp("systemd")) as booted, booted.network():
        yield booted
