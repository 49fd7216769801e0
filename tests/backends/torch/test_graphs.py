"""Recorded decode steps: batches are filled up with rows of nobody's, in tensors that stay where they are.

Recording needs a GPU; everything around it is run here with a recorder that only calls the forward pass again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from homeai.backends.torch.attention import Attention
from homeai.backends.torch.graphs import DecodeGraphs, padded_sizes
from homeai.backends.torch.sdpa import SdpaAttention
from tests.backends.torch.factories import Driver, model_of, start_runner, text


def with_graphs(path: Path, recorded: list[int]) -> Driver:
    runner = start_runner(path, max_num_seqs=4)

    def attention_of(num_rows: int) -> Attention:
        recorded.append(num_rows)
        return SdpaAttention(runner._kv)

    def record(forward: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return forward

    groups = runner._tables.groups
    runner._graphs = DecodeGraphs(runner._model, runner._kv, groups, attention_of, record, runner.limits.max_num_seqs)
    return Driver(runner)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_filled_up_batches_give_the_same_logits(family: str, model_folder: Path) -> None:
    path = model_of(family, model_folder)
    recorded: list[int] = []
    driver = with_graphs(path, recorded)
    for i in range(4):
        driver.add(f"r{i}", i, text(60, seed=i))
    driver.step(("r0", 33), ("r1", 16), ("r2", 4), ("r3", 50))
    assert not recorded, "a prefill is no decode step"
    driver.step(("r3", 1), ("r0", 1), ("r2", 1))
    driver.step(("r1", 1), ("r3", 1), ("r0", 1), ("r2", 1))
    driver.step(("r2", 1), ("r1", 1))
    driver.step(("r2", 1), ("r1", 2))
    for _ in range(3):
        driver.step(("r2", 1), ("r1", 1), ("r0", 1))
    assert recorded == [4, 2], "each size once"
    driver.check(path, "r0", "r1", "r2", "r3")


def test_all_sizes_are_recorded_before_the_first_request(model_folder: Path) -> None:
    recorded: list[int] = []
    with_graphs(model_of("llama", model_folder), recorded).runner.warm_up()
    assert recorded == [4, 2, 1]


def test_sizes_waste_little() -> None:
    assert padded_sizes(1) == [1]
    assert padded_sizes(6) == [1, 2, 4, 6]
    assert padded_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
