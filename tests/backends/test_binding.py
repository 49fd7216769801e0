"""The layer over llama.cpp's C API, on the real library and the real model."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.context import Batch, Context, ContextConfig
from homeai.errors import ModelLoadError


def open_context(model: Model, **changes: object) -> Context:
    defaults: dict[str, object] = {
        "num_kv_cells": 1024,
        "num_ids": 4,
        "num_outputs": 4,
        "max_num_batched_tokens": 256,
        "max_ubatch_tokens": 256,
        "num_threads": 1,
    }
    return Context(model, ContextConfig(**defaults | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


# ---- files that are no models -----------------------------------------------------------------------

BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "starts with b''"),
    "text": (lambda data: b"hello", "starts with b'hell'"),
    "magic-only": (lambda data: data[:4], "failed to read header"),
    "future-version": (lambda data: data[:4] + b"\x63\0\0\0" + data[8:], "version 99"),
    "cut-in-the-metadata": (lambda data: data[:1000], "failed to read key-value pairs"),
    "cut-in-the-vocabulary": (lambda data: data[:3_000_000], "failed to read key-value pairs"),
    "cut-in-the-weights": (lambda data: data, "corrupted or incomplete"),
    "zeros": (lambda data: data[:4] + bytes(5000), "bad GGUF version: 0"),
}


@pytest.fixture(scope="module")
def beginning(model_path: Path) -> bytes:
    """Enough of the file for its metadata and some of its weights."""
    with model_path.open("rb") as file:
        return file.read(20_000_000)


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("vocab_only", [False, True])
def test_broken_file_is_refused_with_the_reason(tmp_path: Path, beginning: bytes, kind: str, vocab_only: bool) -> None:
    breaking, reason = BROKEN[kind]
    path = tmp_path / f"{kind}.gguf"
    path.write_bytes(breaking(beginning))
    with pytest.raises(ModelLoadError, match=rf"{kind}\.gguf.*{reason}"):
        Model(path, vocab_only=vocab_only)


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"not found: .*nothing\.gguf"):
        Model(tmp_path / "nothing.gguf")
    with pytest.raises(ModelLoadError, match="not a file"):
        Model(tmp_path)


def test_good_model_loads_after_a_broken_one(tmp_path: Path, model_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError):
        Model(path)
    Model(model_path, vocab_only=True).close()


def test_load_reports_its_progress(model_path: Path) -> None:
    fractions: list[float] = []
    Model(model_path, on_progress=fractions.append).close()
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_impossible_context_is_refused_with_the_reason(model: Model) -> None:
    with pytest.raises(ModelLoadError, match=r"context of 1024 tokens: .*flash"):
        open_context(model, kv_type="q8_0", flash_attention="off")


# ---- freeing, logging -------------------------------------------------------------------------------


def test_closing_gives_the_memory_back(model_path: Path) -> None:
    def use() -> int:
        model = Model(model_path)
        context = open_context(model, num_kv_cells=4096)
        batch = Batch(8)
        batch.add((0,), 0, [2, 5, 6], num_outputs=1)
        assert context.decode(batch) == 0
        context.close()
        model.close()
        gc.collect()
        return psutil.Process().memory_info().rss

    first, *others = [use() for _ in range(5)]
    assert max(others) - first < 20 * 2**20, "a context's buffers alone are more than that"


def test_closing_twice_is_harmless(model_path: Path) -> None:
    model = Model(model_path, vocab_only=True)
    model.close()
    model.close()
    with pytest.raises(AssertionError, match="closed"):
        _ = model.n_ctx_train


def test_reason_of_a_failed_load_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    with caplog.at_level(logging.DEBUG, logger="llama.cpp"), pytest.raises(ModelLoadError, match="read header"):
        Model(path)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], "whoever catches it logs it"


def test_llama_cpps_chatter_is_debug(model_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="llama.cpp"):
        Model(model_path, vocab_only=True).close()
    assert len(caplog.records) > 10
    assert {r.levelno for r in caplog.records} <= {logging.DEBUG, logging.WARNING}


def test_no_end_token_is_overlooked(model: Model) -> None:
    vocab = model.vocab
    assert vocab.end_token_ids() == {token_id for token_id in range(vocab.n_tokens) if vocab.is_end(token_id)} != set()
