"""KV ops of a plan on the real model: order, results, and what becomes of chunks that rely on one that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homeai.backends.llamacpp.runner import LlamaCppRunner, load
from homeai.scheduling.plan import KVOp, KVOpKind, KVOpResult
from tests.backends.factories import Driver, encode, long_text
from tests.engine.factories import create_engine_config

OK = KVOpResult()
FAILED = KVOpResult(ok=False)
DROP, TRUNCATE, SHARE, SAVE, RESTORE, FORGET = KVOpKind


@pytest.fixture
def start(model_path: Path) -> Iterator[Callable[..., Driver]]:
    runners: list[LlamaCppRunner] = []

    def start_(**changes: object) -> Driver:
        defaults: dict[str, object] = {"max_num_seqs": 2, "num_cached_seqs": 6, "num_kv_cells": 1024}
        runners.append(load(create_engine_config(model_path, **defaults | changes), lambda fraction: None))
        return Driver(runners[-1])

    yield start_
    for runner in runners:
        runner.close()


@pytest.fixture
def driver(start: Callable[..., Driver]) -> Driver:
    return start()


def text(driver: Driver, num_tokens: int) -> list[int]:
    return long_text(driver.runner._model, num_tokens)


def fill(driver: Driver, name: str, seq_id: int, prompt: list[int]) -> None:
    driver.add(name, seq_id, prompt)
    while driver.num_computed[name] < len(prompt):
        driver.step(name)


def positions(driver: Driver, seq_id: int) -> range:
    return driver.runner._sequences.positions(seq_id)


@pytest.mark.parametrize("kv_layout", ["unified", "partitioned"])
def test_ops_run_in_order_and_before_the_tokens(start: Callable[..., Driver], kv_layout: str) -> None:
    driver = start(kv_layout=kv_layout, num_kv_cells=1024)
    prompt = text(driver, 200)
    fill(driver, "a", 0, prompt)
    driver.add("b", 1, prompt[:100] + prompt[:20], start=100)
    ops = [KVOp(SHARE, 1, 0, 150), KVOp(DROP, 0), KVOp(TRUNCATE, 1, length=100)]
    result = driver.step("b", ops=ops)
    assert result.kv_op_results == [OK, OK, OK]
    assert (result.num_computed, len(next(iter(result.sampled)))) == ([20], 1)
    assert (positions(driver, 0), positions(driver, 1)) == (range(0), range(120))


@pytest.mark.parametrize("kv_layout", ["unified", "partitioned"])
def test_text_goes_on_the_same_after_sharing_and_after_saving(start: Callable[..., Driver], kv_layout: str) -> None:
    driver = start(kv_layout=kv_layout, num_kv_cells=2048)
    prompt = text(driver, 400) + encode(driver.runner._model, "\n\nCounting: 1, 2, 3, 4, 5, 6, 7,")[1:]
    fill(driver, "a", 0, prompt)
    driver.generate("a", 10)
    driver.add("b", 1, prompt, start=400)
    driver.step("b", ops=[KVOp(SHARE, 1, 0, 400)])
    driver.generate("b", 10)
    length = driver.num_computed["a"]
    saved, dropped = driver.ops(KVOp(SAVE, 0, 7, length), KVOp(DROP, 0))
    assert (saved.ok, dropped) == (True, OK)
    assert saved.num_bytes > 400 * 10_000
    assert driver.ops(KVOp(RESTORE, 0, 7, length), KVOp(FORGET, -1, 7)) == [saved, OK]
    assert driver.runner._operations.num_saved_bytes == 0
    driver.generate("a", 10)
    driver.generate("b", 10)
    driver.check("a", "b")
    assert driver.tokens["a"] == driver.tokens["b"]
    assert " 8, 9, 10" in written(driver, driver.tokens["a"][len(prompt) :])


def written(driver: Driver, tokens: list[int]) -> str:
    return b"".join(driver.runner._model.vocab.piece(token, special=True) for token in tokens).decode()


def test_what_was_never_saved_or_is_forgotten_cannot_be_restored(driver: Driver) -> None:
    fill(driver, "a", 0, text(driver, 50))
    assert driver.ops(KVOp(SAVE, 0, 7, 50), KVOp(FORGET, -1, 7))[1] == OK
    assert driver.ops(KVOp(RESTORE, 1, 7, 50), KVOp(RESTORE, 1, 8, 50)) == [FAILED, FAILED]
    assert positions(driver, 1) == range(0)


def test_restored_sequence_is_cut_to_the_length_that_is_wanted(driver: Driver) -> None:
    fill(driver, "a", 0, text(driver, 200))
    results = driver.ops(KVOp(SAVE, 0, 7, 200), KVOp(RESTORE, 1, 7, 120))
    assert [result.ok for result in results] == [True, True]
    assert positions(driver, 1) == range(120)


def test_chunk_of_a_failed_restore_is_not_computed_and_the_others_are(driver: Driver) -> None:
    prompt = text(driver, 60)
    fill(driver, "a", 0, prompt)
    driver.add("b", 1, prompt, start=50)
    result = driver.step("b", "a", ops=[KVOp(RESTORE, 1, 7, 50)])
    assert result.kv_op_results == [FAILED]
    assert (result.num_computed, result.out_of_room) == ([0, 1], False)
    assert [len(tokens) for tokens in result.sampled] == [0, 1]
    assert positions(driver, 1) == range(0)
    driver.num_computed["b"] = 0
    assert len(next(iter(driver.step("b").sampled))) == 1, "and then it is computed from its beginning"


def test_step_whose_only_chunk_cannot_run_is_no_step(driver: Driver) -> None:
    driver.add("b", 1, text(driver, 60), start=50)
    result = driver.step("b", ops=[KVOp(RESTORE, 1, 7, 50)])
    assert (result.num_computed, list(result.sampled), result.forward_s) == ([0], [[]], 0.0)


def test_failure_passes_on_to_what_relies_on_it(driver: Driver) -> None:
    driver.add("b", 2, text(driver, 60), start=30)
    ops = [KVOp(RESTORE, 1, 7, 50), KVOp(TRUNCATE, 1, length=40), KVOp(SHARE, 2, 1, 30), KVOp(SAVE, 1, 9, 40)]
    result = driver.step("b", ops=ops)
    assert result.kv_op_results == [FAILED] * 4
    assert result.num_computed == [0]


def test_failed_sequence_may_begin_anew_in_the_same_step(driver: Driver) -> None:
    fill(driver, "a", 0, text(driver, 60))
    driver.add("b", 1, text(driver, 60), start=40)
    ops = [KVOp(RESTORE, 1, 7, 50), KVOp(DROP, 1), KVOp(SHARE, 1, 0, 40)]
    result = driver.step("b", ops=ops)
    assert result.kv_op_results == [FAILED, OK, OK]
    assert result.num_computed == [20]


def test_restore_without_room_fails_alone(driver: Driver) -> None:
    fill(driver, "a", 0, text(driver, 600))
    assert driver.ops(KVOp(SAVE, 0, 7, 600))[0].ok
    assert driver.ops(KVOp(RESTORE, 1, 7, 600)) == [FAILED]
    driver.check("a")
    driver.generate("a", 3)


def test_ops_stay_when_the_tokens_find_no_room(driver: Driver) -> None:
    fill(driver, "a", 0, text(driver, 700))
    fill(driver, "b", 1, text(driver, 200))
    driver.add("c", 2, text(driver, 900), start=100)
    result = driver.step("c", ops=[KVOp(SHARE, 2, 0, 100), KVOp(DROP, 1)])
    assert not result.out_of_room
    result = driver.step("c", ops=[KVOp(SHARE, 3, 0, 650)])
    assert (result.out_of_room, result.num_computed, result.kv_op_results) == (True, [0], [OK])
    assert positions(driver, 3) == range(650)
    driver.check("a", "c")


def test_copy_that_is_still_to_be_made_is_neither_saved_nor_overwritten(start: Callable[..., Driver]) -> None:
    """Partitions are copied when the next decode begins: until then the bytes are the old ones."""
    driver = start(kv_layout="partitioned", max_num_seqs=3, num_kv_cells=1536)
    fill(driver, "a", 0, text(driver, 100))
    assert driver.ops(KVOp(SAVE, 0, 7, 100))[0].ok
    share = KVOp(SHARE, 1, 0, 100)
    assert driver.ops(share, KVOp(SAVE, 1, 8, 100), KVOp(DROP, 1), KVOp(RESTORE, 1, 7, 100)) == [OK, FAILED, OK, FAILED]
    driver.generate("a", 1)
    assert driver.ops(KVOp(RESTORE, 1, 7, 100))[0].ok


def test_more_sequences_are_kept_than_a_batch_may_name(start: Callable[..., Driver]) -> None:
    driver = start(max_num_seqs=2, num_cached_seqs=30)
    assert driver.runner.limits.num_seqs == 32
    fill(driver, "origin", 0, text(driver, 200))
    for seq_id in range(1, 32):
        driver.add(str(seq_id), seq_id, [*text(driver, 150), 1000 + seq_id], start=150)
        result = driver.step(str(seq_id), ops=[KVOp(SHARE, seq_id, 0, 150)])
        assert result.kv_op_results == [OK]
    driver.check("origin", *(str(seq_id) for seq_id in range(1, 32)))
    for first, second in ((5, 20), (31, 1), (5, 6)):
        driver.step(str(first), str(second))
    driver.check(*(str(seq_id) for seq_id in range(1, 32)))


def test_limits_say_what_the_layout_can(start: Callable[..., Driver]) -> None:
    unified = start(max_drafts=15).runner.limits
    assert (unified.num_seqs, unified.can_share, unified.is_partitioned, unified.max_drafts) == (8, True, False, 15)
    assert unified.kv_bytes_per_token == 18 * 2 * 256 * 2
    partitioned = start(kv_layout="partitioned", max_drafts=15, num_kv_cells=1024).runner.limits
    assert (partitioned.num_seqs, partitioned.num_kv_cells, partitioned.max_model_len) == (2, 1024, 512)
    assert (partitioned.can_share, partitioned.is_partitioned, partitioned.max_drafts) == (True, True, 15)
    windowed = start(swa_full=False, max_drafts=15).runner.limits
    assert (windowed.num_seqs, windowed.can_share, windowed.can_save, windowed.max_drafts) == (2, False, True, 0)
