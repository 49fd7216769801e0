"""The layer over llama.cpp's C API, on the real library and the real model."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from homeai.backends.llamacpp.binding import Batch, Context, Model
from homeai.errors import ModelLoadError

Logits = npt.NDArray[np.float32]

TEXTS = [
    b"The capital of France is",
    b"def fibonacci(n):\n    if n < 2:\n        return",
    b"Zutaten: 200 g Mehl, 3 Eier,",
    b"Once upon a time, in a small village by the sea, there lived",
]


def open_context(model: Model, **changes: object) -> Context:
    defaults: dict[str, object] = {
        "num_kv_cells": 1024,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 256,
        "max_ubatch_tokens": 256,
        "num_threads": 1,
        "flash_attention": "on",
        "swa_full": True,
        "kv_type": "f16",
    }
    return Context(model, **defaults | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    context = open_context(model)
    yield context
    context.close()


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[list[int]]:
    return [model.vocab.tokenize(text, add_special=True, parse_special=False) for text in TEXTS]


def decode(context: Context, *pieces: tuple[int, list[int], bool]) -> int:
    """One batch of (sequence, its next tokens, whether logits of the last are wanted)."""
    batch = Batch(256)
    for seq_id, tokens, wants_logits in pieces:
        batch.add(seq_id, context.length(seq_id), tokens, wants_logits=wants_logits)
    return context.decode(batch, [(seq_id, len(tokens)) for seq_id, tokens, _ in pieces])


def logits_alone(model: Model, tokens: list[int]) -> Logits:
    """Of the last token, in a context of its own."""
    context = open_context(model)
    assert decode(context, (0, tokens, True)) == 0
    row = context.logits(1)[0].copy()
    context.close()
    return row


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


# ---- what a sequence holds --------------------------------------------------------------------------


def test_lengths_are_those_of_llama_cpp(context: Context, prompts: list[list[int]]) -> None:
    decode(context, (0, prompts[0], False), (2, prompts[1], True))
    decode(context, (2, [5], True), (1, prompts[2], False))
    lengths = [len(prompts[0]), len(prompts[2]), len(prompts[1]) + 1, 0]
    assert [context.length(s) for s in range(4)] == [context.stored_length(s) for s in range(4)] == lengths


def test_dropped_sequence_is_empty_and_its_neighbours_are_not(context: Context, prompts: list[list[int]]) -> None:
    decode(context, *((seq_id, prompt, False) for seq_id, prompt in enumerate(prompts)))
    context.drop(1)
    assert context.length(1) == context.stored_length(1) == 0
    for seq_id in (0, 2, 3):
        assert context.stored_length(seq_id) == len(prompts[seq_id])


@pytest.mark.parametrize("seq_id", [-1, 4])
def test_sequence_that_does_not_exist_is_not_dropped(context: Context, seq_id: int) -> None:
    with pytest.raises(AssertionError, match=f"no sequence {seq_id}"):
        context.drop(seq_id)


def test_decode_without_room_changes_nothing(model: Model, prompts: list[list[int]]) -> None:
    context = open_context(model, num_kv_cells=256)
    assert decode(context, (0, [5] * 200, False)) == 0
    assert decode(context, (0, [5], True), (1, [5] * 60, True)) == 1
    assert [context.length(s) for s in (0, 1)] == [context.stored_length(s) for s in (0, 1)] == [200, 0]
    assert decode(context, (0, [5], True), (1, [5] * 55, True)) == 0, "exactly full"
    context.drop(0)
    assert decode(context, (2, [5] * 201, True)) == 0, "dropped cells are free again"
    context.close()


def test_batch_takes_no_more_than_it_holds() -> None:
    batch = Batch(8)
    batch.add(0, 0, [1] * 6, wants_logits=False)
    with pytest.raises(AssertionError, match="9 tokens do not fit a batch of 8"):
        batch.add(1, 0, [1] * 3, wants_logits=False)
    batch.clear()
    batch.add(1, 0, [1] * 8, wants_logits=True)
    assert batch.num_tokens == 8


def test_context_has_no_more_sequences_than_llama_cpp(model: Model) -> None:
    with pytest.raises(AssertionError, match="256 sequences, not 257"):
        open_context(model, max_num_seqs=257)


# ---- logits -----------------------------------------------------------------------------------------


def test_rows_come_in_batch_order_however_decodes_and_prefills_mix(
    model: Model, context: Context, prompts: list[list[int]]
) -> None:
    a, b, c, d = prompts
    decode(context, (0, a[:-1], False), (1, b[:-1], False), (2, c[:4], False))
    code = decode(context, (2, c[4:], True), (0, a[-1:], True), (3, d[:5], False), (1, b[-1:], True))
    assert code == 0
    rows = context.logits(3)
    for row, prompt in zip(rows, (c, a, b), strict=True):
        assert np.abs(row - logits_alone(model, prompt)).max() < 1.0
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(rows[first] - rows[second]).max() > 3.0, "else the comparison above says nothing"


def test_chunks_choose_the_token_of_the_whole(model: Model, context: Context) -> None:
    tokens = model.vocab.tokenize(
        b"A list of animals: cat, dog, horse, cow. " * 8, add_special=True, parse_special=False
    )
    for start in range(0, len(tokens), 25):
        chunk = tokens[start : start + 25]
        decode(context, (0, chunk, start + len(chunk) == len(tokens)))
    row = context.logits(1)[0]
    assert row.max() - row[logits_alone(model, tokens).argmax()] <= 0.2


def test_every_sequence_may_have_a_row(model: Model, prompts: list[list[int]]) -> None:
    context = open_context(model, max_num_seqs=16)
    assert decode(context, *((seq_id, prompts[0], True) for seq_id in range(16))) == 0
    rows = context.logits(16)
    assert np.abs(rows - rows[0]).max() < 1.0
    context.close()


# ---- freeing, logging -------------------------------------------------------------------------------


def test_closing_gives_the_memory_back(model_path: Path, prompts: list[list[int]]) -> None:
    def use() -> int:
        model = Model(model_path)
        context = open_context(model, num_kv_cells=4096)
        decode(context, (0, prompts[0], True))
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
