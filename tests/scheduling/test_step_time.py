"""What a step takes, learned from steps."""

from __future__ import annotations

import random

import pytest

from homeai.scheduling.step_time import StepTimeModel
from tests.scheduling.factories import MACHINES, teach


@pytest.mark.parametrize("machine", MACHINES)
def test_steps_of_any_machine_are_learned(machine: tuple[float, float, float, float]) -> None:
    model = StepTimeModel()
    teach(model, *machine)
    a, b, c, d = machine
    for num_prefill, num_decode, num_cells in [(0, 1, 500), (0, 8, 3000), (128, 4, 1000)]:
        real = a + b * num_prefill + c * num_decode + d * (num_prefill + num_decode) * num_cells / 1e6
        assert model.predict(num_prefill, num_decode, num_cells) == pytest.approx(real, rel=0.1)


def test_noise_does_not_lead_astray() -> None:
    model = StepTimeModel()
    teach(model, *MACHINES[0], steps=1000, noise=0.2)
    assert model.predict(100, 8, 2000) == pytest.approx(0.014 + 0.19 + 0.04 + 0.01 * 108 * 0.002, rel=0.15)


def test_machine_that_became_busy_is_noticed_in_a_few_steps() -> None:
    model = StepTimeModel()
    teach(model, *MACHINES[0])
    before = model.predict(100, 4, 1000)
    for _ in range(8):
        model.observe(100, 4, 1000, 2 * before)
    assert model.predict(100, 4, 1000) == pytest.approx(2 * before, rel=0.2)


def test_many_steps_of_one_kind_do_not_spoil_the_others() -> None:
    model = StepTimeModel()
    teach(model, *MACHINES[0])
    for _ in range(20_000):
        model.observe(0, 1, 500, 0.019)
    assert model.predict(200, 1, 500) == pytest.approx(0.014 + 0.38 + 0.005, rel=0.2)


def test_step_that_draws_may_cost_more_than_the_midst_of_a_prompt() -> None:
    """A small model's output matrix is most of its weights."""
    model = StepTimeModel()
    rng = random.Random(5)
    for _ in range(200):
        num_prefill, num_decode = rng.choice([0, 0, 60, 200]), rng.choice([0, 3, 8])
        draws = num_decode > 0 or rng.random() < 0.3
        seconds = 0.01 + 0.001 * num_prefill + 0.005 * num_decode + 0.02 * draws
        model.observe(num_prefill, num_decode, 1000, seconds, draws=draws)
    for num_decode, draws in [(8, True), (0, True), (0, False)]:
        expected = 0.01 + 0.1 + 0.005 * num_decode + 0.02 * draws
        assert model.predict(100, num_decode, 1000, draws=draws) == pytest.approx(expected, rel=0.05)


def test_easy_decodes_do_not_make_prefill_look_easy() -> None:
    model = StepTimeModel()
    teach(model, *MACHINES[0])
    before = model.predict(100, 8, 1000)
    for _ in range(10):
        model.observe(0, 8, 1000, 0.5 * model.predict(0, 8, 1000))
    assert model.predict(100, 8, 1000) > 0.8 * before


def test_rows_that_cost_a_step_may_ride_along_with_prefill() -> None:
    """On a GPU a prompt keeps the multipliers busy, and decodes beside it cost next to nothing."""
    model, rng = StepTimeModel(), random.Random(5)
    for _ in range(200):
        num_prefill, num_decode = rng.choice([0, 0, 10, 100]), rng.choice([1, 4, 8])
        seconds = 0.012 + 0.0006 * num_prefill if num_prefill else 0.008 + 0.003 * num_decode
        model.observe(num_prefill, num_decode, 1000, seconds)
    for num_decode in (1, 8):
        assert model.predict(40, num_decode, 1000) == pytest.approx(0.012 + 0.024, rel=0.05)
        assert model.predict(0, num_decode, 1000) == pytest.approx(0.008 + 0.003 * num_decode, rel=0.05)
