"""The embedding process when it hangs: whoever asks is told, and it is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from homeai.embedding.messages import LoadEmbedder
from homeai.errors import NotReady
from homeai.server import embedding_child
from homeai.server.embedding_child import EmbeddingChild


@pytest.fixture(autouse=True)
def is_killed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_child, "KILL_AFTER_S", 0.1)


async def start(model_path: Path, **limits: float) -> EmbeddingChild:
    load = LoadEmbedder(model_path=str(model_path), pooling="mean", max_tokens=64, num_threads=1)
    return await EmbeddingChild.start(load, os.environ, log_level="warning", log_format="text", **limits)


async def test_a_text_that_is_never_answered_is_an_error(model_path: Path) -> None:
    child = await start(model_path, embed_timeout_s=0.1)
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(NotReady, match=r"does not answer within 0\.1 s") as caught:
        await child.embed([5, 6])
    assert caught.value.retry_after_s
    await child.close()
    assert not psutil.pid_exists(child.pid)


async def test_a_model_that_never_loads_is_an_error(model_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(NotReady, match=r"does not answer within 0\.001 s"):
        await start(model_path, load_timeout_s=0.001)
    assert psutil.Process().children() == before
