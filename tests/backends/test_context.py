"""The layer over llama.cpp's context: batches, rows of logits, limits that it would abort at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.context import Batch, Context, ContextConfig
from homeai.sampling.row import Logits
from tests.backends.factories import Cells, encode, logits_alone
from tests.backends.test_sequences import TEXTS

NEAR, FAR = 0.3, 1.5  # the same text computed in another way; another text


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


@pytest.fixture
def cells(model: Model) -> Iterator[Cells]:
    cells = Cells.open(model)
    yield cells
    cells.close()


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[list[int]]:
    return [encode(model, text) for text in TEXTS]


def distance(row: Logits, other: Logits) -> float:
    """Of all logits, on average: how far the worst one is off is the processor's rounding."""
    return float(np.abs(row - other).mean())


def open_context(model: Model, **changes: int) -> Context:
    defaults = {
        "num_kv_cells": 512,
        "num_ids": 4,
        "num_outputs": 8,
        "max_num_batched_tokens": 64,
        "max_ubatch_tokens": 64,
        "num_threads": 1,
    }
    return Context(model, ContextConfig(**defaults | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_layout", ["unified", "partitioned"])
def test_rows_come_in_batch_order_however_decodes_and_prefills_mix(
    model: Model, prompts: list[list[int]], kv_layout: str
) -> None:
    a, b, c, d = prompts
    cells = Cells.open(model, kv_layout=kv_layout)
    cells.decode((0, a[:-1], False), (1, b[:-1], False), (2, c[:4], False))
    code = cells.decode((2, c[4:], True), (0, a[-1:], True), (3, d[:5], False), (1, b[-1:], True))
    assert code == 0
    rows = cells.context.logits(3)
    for row, prompt in zip(rows, (c, a, b), strict=True):
        assert distance(row, logits_alone(model, prompt)) < NEAR
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert distance(rows[first], rows[second]) > FAR, "else the comparison above says nothing"
    cells.close()


def test_chunks_choose_the_token_of_the_whole(model: Model, cells: Cells) -> None:
    tokens = encode(model, "A list of animals: cat, dog, horse, cow. " * 8)
    for start in range(0, len(tokens), 25):
        chunk = tokens[start : start + 25]
        cells.decode((0, chunk, start + len(chunk) == len(tokens)))
    row = cells.context.logits(1)[0]
    assert row.max() - row[logits_alone(model, tokens).argmax()] <= 0.2


def test_every_sequence_may_have_a_row(model: Model, prompts: list[list[int]]) -> None:
    cells = Cells.open(model, max_num_seqs=16)
    assert cells.decode(*((seq_id, prompts[0], True) for seq_id in range(16))) == 0
    rows = cells.context.logits(16)
    assert max(distance(row, rows[0]) for row in rows) < NEAR
    cells.close()


def test_one_sequence_may_have_several_rows(model: Model, prompts: list[list[int]]) -> None:
    context = open_context(model)
    prompt = prompts[3]
    batch = Batch(64)
    batch.add((0,), 0, prompt, num_outputs=3)
    assert context.decode(batch) == 0
    for row, end in zip(context.logits(3), range(len(prompt) - 2, len(prompt) + 1), strict=True):
        assert distance(row, logits_alone(model, prompt[:end])) < NEAR
    context.close()


def test_token_may_belong_to_two_sequences(model: Model, prompts: list[list[int]]) -> None:
    context = open_context(model)
    batch = Batch(64)
    batch.add((1, 2), 0, prompts[0], num_outputs=1)
    assert context.decode(batch) == 0
    context.remove(1)
    assert (context.positions(1), context.positions(2)) == (range(0), range(len(prompts[0])))
    context.close()


def test_batch_takes_no_more_than_it_holds() -> None:
    batch = Batch(8)
    batch.add((0,), 0, [1] * 6, num_outputs=0)
    with pytest.raises(AssertionError, match="9 tokens do not fit a batch of 8"):
        batch.add((1,), 0, [1] * 3, num_outputs=0)
    batch.clear()
    batch.add((1,), 0, [1] * 8, num_outputs=1)
    assert (batch.num_tokens, batch.num_outputs) == (8, 1)


def test_batch_forgets_what_it_held(model: Model, prompts: list[list[int]]) -> None:
    context = open_context(model)
    batch = Batch(64)
    batch.add((1, 2), 0, prompts[0], num_outputs=4)
    batch.clear()
    batch.add((3,), 0, prompts[1], num_outputs=1)
    assert context.decode(batch) == 0
    assert [len(context.positions(i)) for i in range(4)] == [0, 0, 0, len(prompts[1])]
    assert distance(context.logits(1)[0], logits_alone(model, prompts[1])) < NEAR
    context.close()


def test_what_llama_cpp_would_abort_at_is_a_bug(model: Model) -> None:
    with pytest.raises(AssertionError, match="256 sequences, not 257"):
        open_context(model, num_ids=257)
    context = open_context(model)
    batch = Batch(128)
    batch.add((0,), 0, [5] * 65, num_outputs=0)
    with pytest.raises(AssertionError, match="65 tokens in a batch"):
        context.decode(batch)
    batch.clear()
    batch.add((0,), 0, [5] * 16, num_outputs=9)
    with pytest.raises(AssertionError, match="9 rows of logits, not 8"):
        context.decode(batch)
    for misuse in (lambda: context.remove(-1), lambda: context.positions(256), lambda: context.copy(0, 256)):
        with pytest.raises(AssertionError, match="no sequence"):
            misuse()
    context.close()
