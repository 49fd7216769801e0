"""A play in figures."""

from __future__ import annotations

import pytest

from homeai.evaluation.bench.overlap import overlap_share, time_by_count
from homeai.evaluation.bench.records import Ending
from homeai.evaluation.bench.score import Prices, cost_of, median_of, score
from tests.evaluation.bench_factories import WEIGHTS, create_play, create_record


def test_rates_and_endings_are_counted_apart() -> None:
    endings = [Ending.COMPLETED, Ending.REJECTED, Ending.FAILED, Ending.CANCELLED]
    records = [create_record(index, ending=ending) for index, ending in enumerate(endings)]
    figures = score(create_play(records, wall_s=20.0), offered_s=10.0, weights=WEIGHTS).figures
    assert (figures.offered_rps, figures.completed_rps) == (0.4, 0.05)
    assert (figures.num_rejected, figures.num_failed, figures.num_cancelled) == (1, 1, 1)
    assert figures.error_rate == 0.5
    assert figures.tokens_per_s == 2.0


def test_attended_latencies_leave_background_out() -> None:
    records = [create_record(0, ttft_s=0.2), create_record(1, ttft_s=9.0, fairness_class="background")]
    found = score(create_play(records), offered_s=10.0, weights=WEIGHTS)
    assert found.attended.ttft_p95 == pytest.approx(0.2)
    assert found.classes["background"].ttft_p95 == pytest.approx(9.0)


def test_a_piece_of_several_tokens_counts_them_all() -> None:
    record = create_record(num_tokens=3, num_output_tokens=30)
    found = score(create_play([record], wall_s=10.0), offered_s=10.0, weights=WEIGHTS)
    assert found.figures.tokens_per_s_1 == pytest.approx(6.0)
    assert found.attended.tpot_p50 == pytest.approx(0.2 / 29)


def test_two_sources_that_get_the_same_are_served_fairly_and_one_that_starves_is_not() -> None:
    def jain(second_ttft: float) -> float | None:
        records = [
            create_record(0, source="a", ttft_s=8.0, num_prompt_tokens=800),
            create_record(1, source="b", ttft_s=second_ttft, num_prompt_tokens=round(800 * 8 / second_ttft)),
            create_record(2, source="c", ttft_s=8.0, num_tokens=0, num_output_tokens=0, ended_at=8.0),
        ]
        return score(create_play(records), offered_s=10.0, weights=WEIGHTS).figures.jain

    assert jain(8.0) == pytest.approx(2 / 3, abs=0.01)  # a and b alike, c nothing
    fair = [create_record(index, source=name, ttft_s=8.0) for index, name in enumerate("ab")]
    assert score(create_play(fair), offered_s=10.0, weights=WEIGHTS).figures.jain == pytest.approx(1.0)


def test_share_is_shown_against_weight() -> None:
    records = [
        create_record(0, source="a", ttft_s=8.0, fairness_class="interactive", num_prompt_tokens=800),
        create_record(1, source="b", ttft_s=8.0, fairness_class="background", num_prompt_tokens=800),
    ]
    classes = score(create_play(records), offered_s=10.0, weights=WEIGHTS).classes
    assert classes["interactive"].share == pytest.approx(0.5)
    assert classes["interactive"].weight_share == pytest.approx(0.8)


def test_cost_counts_idle_time_and_is_of_accepted_answers_only() -> None:
    prices = Prices(kwh=0.30, hour=1.0)
    assert cost_of(prices, joules=3.6e6, wall_s=3600, num_accepted=10) == pytest.approx(0.13)
    assert cost_of(prices, joules=None, wall_s=3600, num_accepted=10) is None
    assert cost_of(Prices(hour=1.0), joules=None, wall_s=3600, num_accepted=10) == pytest.approx(0.1)
    assert cost_of(prices, joules=1.0, wall_s=1.0, num_accepted=0) is None


def test_stated_watts_stand_in_for_a_meter() -> None:
    found = score(create_play([create_record()]), offered_s=10, weights=WEIGHTS, prices=Prices(kwh=0.3, watts=100))
    assert found.figures.joules_per_token == pytest.approx(100.0)


def test_kept_cells_do_not_count_as_in_use() -> None:
    assert score(create_play([create_record()]), offered_s=10, weights=WEIGHTS).figures.kv_peak == pytest.approx(0.4)


def test_phases_of_a_spike_count_who_was_sent_away_with_his_waiting() -> None:
    records = [
        create_record(0, sent_at=0.0, ttft_s=0.1),
        create_record(1, sent_at=5.0, ttft_s=0.1, num_tokens=0, ended_at=8.0, ending=Ending.REJECTED),
        create_record(2, sent_at=9.0, ttft_s=0.3),
    ]
    found = score(create_play(records), offered_s=10, weights=WEIGHTS, spike=(4.0, 6.0))
    assert found.phases == pytest.approx([0.1, 3.0, 0.3])


def test_median_is_of_each_figure() -> None:
    scores = [
        score(create_play([create_record(ttft_s=ttft)], wall_s=wall), offered_s=10, weights=WEIGHTS)
        for ttft, wall in ((0.1, 30.0), (0.2, 10.0), (0.3, 20.0))
    ]
    middle = median_of(scores)
    assert middle.attended.ttft_p50 == pytest.approx(0.2)
    assert middle.figures.wall_s == 20.0


def test_overlap_is_the_part_of_busy_time_with_company() -> None:
    assert overlap_share([(0, 2), (1, 3)]) == pytest.approx(1 / 3)
    assert overlap_share([(0, 1), (1, 2), (5, 6)]) == 0.0
    assert overlap_share([]) == 0.0
    assert time_by_count([(0, 4), (1, 3), (2, 3)]) == {1: 2, 2: 1, 3: 1}
