"""Logits of mixed batches are those of transformers' own forward pass over each whole text."""

from __future__ import annotations

from pathlib import Path

import pytest

from homeai.backends.torch.runner import TorchRunner
from homeai.scheduling.plan import KVOp, KVOpKind
from tests.backends.torch.factories import CAPPED, FAMILIES, WINDOW, WITH_SINKS, Driver, model_of, start_runner, text

DROP, TRUNCATE, SHARE, SAVE, RESTORE, FORGET = KVOpKind


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, model_folder: Path) -> Path:
    return model_of(request.param, model_folder)


@pytest.fixture(scope="module", params=[True, False], ids=["swa_full", "window_only"])
def runner(request: pytest.FixtureRequest, path: Path) -> TorchRunner:
    return start_runner(path, swa_full=request.param)


@pytest.fixture
def driver(runner: TorchRunner) -> Driver:
    return Driver(runner)


def test_prompt_in_chunks_and_then_token_by_token(path: Path, driver: Driver) -> None:
    driver.add("a", 0, text(100))
    for count in (40, 30, 7, 1, 1, 1, 16, 1, 1):
        driver.step(("a", count))
    driver.check(path, "a")


def test_prefill_chunks_beside_decodes(path: Path, driver: Driver) -> None:
    for i, length in enumerate((70, 45, 20, 90)):
        driver.add(f"r{i}", i, text(length, seed=i))
    driver.step(("r0", 50))
    driver.step(("r0", 1), ("r1", 30), ("r2", 5))
    driver.step(("r2", 1), ("r3", 60), ("r0", 1), ("r1", 1))
    for _ in range(8):
        driver.step(("r3", 2), ("r1", 1), ("r0", 1), ("r2", 1))
    driver.check(path, "r0", "r1", "r2", "r3")


def test_shared_prefix_and_copy_on_write(path: Path, driver: Driver) -> None:
    shared = text(37)
    driver.add("a", 0, shared + text(40, seed=1))
    driver.step(("a", 37))
    driver.add("b", 1, shared + text(40, seed=2), start=37)
    driver.add("c", 2, shared[:20] + text(40, seed=3), start=20)
    driver.step(("b", 10), ("c", 20), ("a", 1), ops=[KVOp(SHARE, 1, 0, 37), KVOp(SHARE, 2, 1, 20)])
    for _ in range(20):
        driver.step(("a", 1), ("b", 1), ("c", 1))
    driver.check(path, "a", "b", "c")


def test_parked_to_host_memory_and_resumed(path: Path, driver: Driver) -> None:
    driver.add("a", 0, text(90, seed=1))
    driver.add("b", 1, text(90, seed=2))
    driver.step(("a", 45), ("b", 30))
    saved, dropped = driver.step(("b", 1), ops=[KVOp(SAVE, 0, 7, 45), KVOp(DROP, 0)]).kv_op_results
    assert saved.ok
    assert saved.num_bytes
    assert dropped.ok
    while driver.runner._tables.pools[0].num_free and driver.num_computed["b"] < 60:
        driver.step(("b", 1))
    driver.add("c", 2, text(700, seed=3))  # lies where it lay
    driver.step(("c", 250), ("b", 1))
    driver.step(("c", 250))
    driver.seq_ids["a"] = 3
    result = driver.step(("a", 3), ("b", 1), ops=[KVOp(RESTORE, 3, 7, 45), KVOp(FORGET, -1, 7)])
    assert [done.ok for done in result.kv_op_results] == [True, True]
    driver.step(("a", 20), ("b", 1))
    driver.check(path, "a", "b")


def test_tail_that_is_cut_off_is_computed_anew(path: Path, driver: Driver) -> None:
    beginning = text(50)
    driver.add("a", 0, beginning + text(10, seed=1))
    driver.step(("a", 60))
    driver.add("b", 0, beginning[:44] + text(30, seed=2), start=44)
    result = driver.step(("b", 9), ops=[KVOp(TRUNCATE, 0, length=44)])
    if not result.kv_op_results[0].ok:  # its window had left what 44 looks at
        assert result.num_computed == [0]
        driver.num_computed["b"] = 0
        driver.step(("b", 53))
    driver.step(("b", 1))
    driver.check(path, "b")


@pytest.mark.parametrize("family", [CAPPED, WITH_SINKS])
def test_capped_logits_and_sinks(family: str, model_folder: Path) -> None:
    path = model_of(family, model_folder)
    driver = Driver(start_runner(path))
    for i in range(3):
        driver.add(f"r{i}", i, text(80, seed=i))
    driver.step(("r0", 40), ("r1", 12))
    driver.step(("r0", 1), ("r1", 1), ("r2", 30))
    driver.step(("r0", 20), ("r1", 1), ("r2", 1))
    for _ in range(5):
        driver.step(("r0", 1), ("r1", 1), ("r2", 1))
    driver.check(path, "r0", "r1", "r2")


def test_window_is_shorter_than_the_texts_here() -> None:
    assert WINDOW < 37
