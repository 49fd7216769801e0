from __future__ import annotations

import pytest

from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation import traces, workload
from homeai.evaluation.bench.score import Prices
from homeai.evaluation.plan.capacity import Setting
from homeai.evaluation.plan.compare import Side, compare
from homeai.evaluation.plan.gpus import GPUS
from homeai.evaluation.plan.models import MODELS

CARDS = [GPUS["rtx-5090"], GPUS["rtx-4080"]]


def sides(model: str, *prices: Prices) -> list[Side]:
    arrivals = workload.scaled(traces.household(11), 30)
    setting = Setting(num_seqs=16, context=4096)
    return compare(Config(), MODELS[model], CARDS, setting, arrivals, prices or [Prices(), Prices()])


def test_smaller_card_gets_the_cells_that_it_holds_and_parks_for_want_of_them() -> None:
    large, small = sides("8b-q8")
    assert large.num_cells == 16 * 4096
    assert small.num_cells < 0.8 * large.num_cells
    assert large.summary.overall.num_requests == small.summary.overall.num_requests
    assert large.summary.num_preemptions == 0 < small.summary.num_preemptions
    assert small.summary.tokens_per_s < large.summary.tokens_per_s


def test_price_of_an_hour_becomes_the_cost_of_an_answer() -> None:
    large, small = sides("8b-q4", Prices(hour=0.6), Prices())
    assert large.cost == pytest.approx(0.6 * large.summary.wall_s / 3600 / large.summary.overall.num_completed)
    assert small.cost is None


def test_electricity_counts_for_the_time_in_which_the_card_works() -> None:
    large, _ = sides("8b-q4", Prices(kwh=0.3), Prices())
    kwh = 575 * large.summary.busy * large.summary.wall_s / 3.6e6
    assert large.cost == pytest.approx(0.3 * kwh / large.summary.overall.num_completed)


def test_card_that_does_not_hold_the_model_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match=r"70B Q4_K_M needs 42\.5 GB .* 32 GB of an RTX 5090"):
        sides("70b-q4")
