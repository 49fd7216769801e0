"""Guesses on the real model: they change how many steps a text takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homeai.backends.llamacpp.runner import LlamaCppRunner, load
from homeai.backends.shared.drafts import StepCosts
from homeai.scheduling.plan import KVOp, KVOpKind
from tests.backends.factories import Driver, encode, long_text
from tests.backends.test_llamacpp_runner import DELTA, gaps
from tests.engine.factories import create_engine_config

MAX_DRAFTS = 15
RECIPE = (
    "Mix the flour with sugar, salt and lemon zest. Rub in the cold butter. Knead in one egg and let the dough rest "
    "for an hour. Roll it out, cut stars and moons, and bake them at 180 degrees for twelve minutes.\n"
)
COUNTING = "One, two, three, four, five, six, seven, eight,"  # no token of what follows is a near-tie
REPEATING = f"Recipe, first copy:\n{RECIPE}\nRecipe, second copy:\n{RECIPE}\nRecipe, third copy:\n"


class FreeSteps(StepCosts):
    """Every step takes as long as any other: what may be guessed is guessed, however slow the machine."""

    def observe(self, num_tokens: int, seconds: float) -> None:
        super().observe(num_tokens, 1.0)


@pytest.fixture
def start(model_path: Path) -> Iterator[Callable[..., Driver]]:
    runners: list[LlamaCppRunner] = []

    def start_(**changes: object) -> Driver:
        defaults: dict[str, object] = {"max_num_seqs": 4, "num_kv_cells": 2048, "max_drafts": MAX_DRAFTS}
        runners.append(load(create_engine_config(model_path, **defaults | changes), lambda fraction: None))
        runners[-1]._guesses.costs = FreeSteps()
        return Driver(runners[-1])

    yield start_
    for runner in runners:
        runner.close()


@pytest.fixture
def driver(start: Callable[..., Driver]) -> Driver:
    return start()


def prompt_of(driver: Driver, text: str = REPEATING) -> list[int]:
    return encode(driver.runner._model, text)


def without_drafts(driver: Driver, prompt: list[int], num_tokens: int, **sampling: object) -> list[int]:
    driver.add("plain", 3, prompt, **sampling)
    tokens = driver.generate("plain", num_tokens)
    driver.ops(KVOp(KVOpKind.DROP, 3))
    driver.num_steps = 0
    return tokens


@pytest.mark.parametrize("kv_layout", ["unified", "partitioned"])
def test_greedy_text_is_the_same_and_takes_fewer_steps(start: Callable[..., Driver], kv_layout: str) -> None:
    driver = start(kv_layout=kv_layout)
    prompt = prompt_of(driver)
    expected = without_drafts(driver, prompt, 60)
    driver.add("fast", 0, prompt)
    assert driver.generate("fast", 60, num_drafts=MAX_DRAFTS) == expected
    assert driver.num_steps < 20
    assert driver.num_drafts > 40


def test_drawn_text_is_that_of_its_seed(driver: Driver) -> None:
    """Each draw is keyed by its place in the text: how many were drawn in one step does not matter."""
    prompt = prompt_of(driver)
    sampling = {"temperature": 0.7, "seed": 11}
    expected = without_drafts(driver, prompt, 60, **sampling)
    driver.add("fast", 0, prompt, **sampling)
    assert driver.generate("fast", 60, num_drafts=MAX_DRAFTS) == expected
    assert driver.num_steps < 50


def test_free_text_agrees_although_most_guesses_are_wrong(driver: Driver) -> None:
    prompt = prompt_of(driver, "He said no. She said no. They said no. He said maybe. Once upon a time, he said")
    only_words_of_the_prompt = dict.fromkeys(prompt, 20.0)
    sampling = {"temperature": 2.0, "seed": 3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    driver.add("free", 0, prompt, logit_bias=only_words_of_the_prompt, **sampling)
    driver.generate("free", 60, num_drafts=MAX_DRAFTS)
    assert driver.num_drafts > driver.num_steps / 4
    driver.add("greedy", 1, prompt)
    outputs = driver.generate("greedy", 60, num_drafts=MAX_DRAFTS)
    assert max(gaps(driver.runner._model, prompt, outputs)) <= DELTA


def test_penalties_see_accepted_tokens_in_order(driver: Driver) -> None:
    prompt = prompt_of(driver)
    sampling = {"repeat_penalty": 1.05, "presence_penalty": 0.1, "repeat_last_n": 8}
    expected = without_drafts(driver, prompt, 50, **sampling)
    driver.add("fast", 0, prompt, **sampling)
    assert driver.generate("fast", 50, num_drafts=MAX_DRAFTS) == expected
    assert driver.num_steps < 40


def test_nothing_is_drawn_beyond_max_tokens(driver: Driver) -> None:
    prompt = prompt_of(driver)
    expected = without_drafts(driver, prompt, 21)
    driver.add("fast", 0, prompt, max_tokens=21)
    driver.generate("fast", 21, num_drafts=MAX_DRAFTS)
    assert driver.tokens["fast"][len(prompt) :] == expected
    assert driver.num_computed["fast"] == len(prompt) + 20, "the last token is never computed"


def test_nothing_is_drawn_beyond_the_models_length(start: Callable[..., Driver]) -> None:
    driver = start(max_model_len=len(prompt_of(start())) + 21)
    prompt = prompt_of(driver)
    driver.add("fast", 0, prompt)
    driver.generate("fast", 21, num_drafts=MAX_DRAFTS)
    assert len(driver.tokens["fast"]) == driver.runner.limits.max_model_len


def test_nothing_is_drawn_behind_an_end_token(driver: Driver) -> None:
    """The copies end with an end token, and so the text is guessed to go on behind it."""
    end = min(driver.runner.limits.end_token_ids)
    copy = prompt_of(driver, RECIPE)[1:]
    prompt = [driver.runner._model.vocab.bos, *copy, end, *copy, end, *copy[:12]]
    driver.add("fast", 0, prompt, ignore_eos=False, logit_bias={end: 8.0})
    for _ in range(60):
        drawn = next(iter(driver.step("fast", num_drafts=MAX_DRAFTS).sampled))
        driver.check("fast")
        if drawn[-1].token_id == end:
            break
    outputs = driver.tokens["fast"][len(prompt) :]
    assert outputs.index(end) == len(outputs) - 1
    assert len(drawn) > 1, "it came in the middle of a guess"


def test_end_token_that_is_ignored_is_drawn_over(driver: Driver) -> None:
    end = min(driver.runner.limits.end_token_ids)
    prompt = prompt_of(driver)
    driver.add("fast", 0, prompt, logit_bias={end: 100.0})
    assert end not in driver.generate("fast", 30, num_drafts=MAX_DRAFTS)


def test_neighbours_of_a_guessing_request_are_as_they_were(driver: Driver) -> None:
    prompt, other = prompt_of(driver), prompt_of(driver, COUNTING)
    expected = without_drafts(driver, other, 12)
    driver.add("fast", 0, prompt)
    driver.add("slow", 1, other)
    driver.step("fast", "slow")
    while len(driver.tokens["slow"]) < len(other) + 12:
        driver.step("slow", "fast", num_drafts=MAX_DRAFTS)
        driver.check("slow", "fast")
    assert driver.tokens["slow"][len(other) :][:12] == expected
    assert len(driver.tokens["fast"]) > len(prompt) + 30


def test_rows_of_logits_are_never_more_than_there_is_room_for(start: Callable[..., Driver]) -> None:
    driver = start(max_num_seqs=4, max_drafts=6)
    prompt = prompt_of(driver)
    names = ["a", "b", "c", "d"]
    for seq_id, name in enumerate(names):
        driver.add(name, seq_id, prompt)
        driver.generate(name, 1)
    for _ in range(10):
        result = driver.step(*names, num_drafts=6)
        assert result.num_draft_tokens + 4 <= driver.runner._context.num_outputs
        driver.check(*names)


def test_guesses_give_way_where_there_is_no_room(start: Callable[..., Driver]) -> None:
    driver = start(num_kv_cells=256)
    prompt = prompt_of(driver)
    driver.add("fast", 0, prompt)
    driver.generate("fast", 10, num_drafts=MAX_DRAFTS)
    num_left = 256 - driver.num_computed["fast"]
    driver.add("other", 1, long_text(driver.runner._model, num_left - 2))
    driver.step("other")
    result = driver.step("fast", num_drafts=MAX_DRAFTS)
    assert (result.out_of_room, result.num_draft_tokens, result.num_computed) == (False, 0, [1])
    driver.check("fast", "other")


def test_kept_beginning_survives_rejected_guesses(driver: Driver) -> None:
    """Cells that a guess took and gave back belong to nobody; those that are shared stay."""
    prompt = prompt_of(driver)
    driver.add("origin", 0, prompt)
    driver.generate("origin", 1)
    driver.add("fast", 1, prompt, start=len(prompt) - 1, temperature=1.5, seed=1)
    driver.step("fast", ops=[KVOp(KVOpKind.SHARE, 1, 0, len(prompt) - 1)], num_drafts=MAX_DRAFTS)
    driver.generate("fast", 40, num_drafts=MAX_DRAFTS)
    driver.check("origin", "fast")
    assert driver.ops(KVOp(KVOpKind.DROP, 0)) == [(True, 0)]
    driver.generate("fast", 10, num_drafts=MAX_DRAFTS)
