"""What the rows mean. Every sentence cites the rows that it comes from."""

from __future__ import annotations

import pytest

from homeai.config import load
from homeai.evaluation.bench.rows import Aims, Findings, Overlap, Row
from homeai.evaluation.bench.verdict import Sentence, Verdict, config_lines, judge
from tests.evaluation.bench_factories import create_findings, create_row, create_score


def sentence(verdict: Verdict, topic: str) -> Sentence:
    return next(each for each in verdict.sentences if each.topic == topic)


def busy_house(*more: Row) -> Findings:
    """Auto meets its target, single does not."""
    return create_findings(
        create_row("R1", "rate", 1, create_score(ttft_p95=0.5, overlap=0.6)),
        create_row("R2", "rate", 1, create_score(ttft_p95=9.0, overlap=0.6), mode="single"),
        *more,
    )


def test_requests_that_rarely_overlap_need_residency_and_no_batching() -> None:
    findings = create_findings(create_row("R1", "rate", 1, create_score(overlap=0.03)), start_s={"base line": 12.5})
    verdict = judge(findings)
    assert verdict.pays is False
    assert "overlapped 3% of the time" in verdict.headline.text
    assert "keep the model resident" in verdict.headline.text
    assert "12.5 s" in verdict.headline.text
    assert "single mode is enough" in verdict.headline.text
    assert verdict.headline.rows == ["R1"]
    assert verdict.settings["residency.policy"] == "pinned"


def test_the_own_ledger_knows_better_than_a_trace_how_much_overlaps() -> None:
    findings = busy_house()
    findings.own_overlap = Overlap(0.02, num_requests=1234, days=7)
    verdict = judge(findings)
    assert verdict.pays is False
    assert "1,234 requests" in verdict.headline.text


def test_batching_pays_when_only_it_meets_the_targets() -> None:
    verdict = judge(busy_house())
    assert verdict.pays is True
    assert "TTFT p95 9.00 s, wanted 2 s" in verdict.headline.text
    assert verdict.headline.rows == ["R1", "R2"]


def test_batching_pays_by_throughput_at_once() -> None:
    verdict = judge(
        create_findings(
            create_row("R1", "rate", 1, create_score(overlap=0.3)),
            create_row("R2", "overlap", 8, create_score(tokens_per_s=90.0)),
            create_row("R3", "rate", 1, create_score(overlap=0.3), mode="single"),
            create_row("R4", "overlap", 8, create_score(tokens_per_s=45.0), mode="single"),
        )
    )
    assert verdict.pays is True
    assert "2.0 times the tokens per second with 8 at once" in verdict.headline.text
    assert {"R2", "R4"} <= set(verdict.headline.rows)


def test_batching_does_not_pay_when_it_is_no_faster_although_requests_overlap() -> None:
    verdict = judge(
        create_findings(
            create_row("R1", "rate", 1, create_score(overlap=0.4)),
            create_row("R2", "rate", 1, create_score(overlap=0.4), mode="single"),
        )
    )
    assert verdict.pays is False
    assert "does not pay on this machine" in verdict.headline.text


def test_what_was_not_measured_is_said() -> None:
    verdict = judge(create_findings(create_row("R1", "rate", 1, create_score(overlap=0.4))))
    assert verdict.pays is None
    assert "homeai bench --modes" in verdict.headline.text
    assert "not measured" in sentence(verdict, "spike").text
    assert "--rounds 2" in sentence(verdict, "repeat").text


def test_errors_at_the_normal_rate_come_before_batching() -> None:
    verdict = judge(create_findings(create_row("R1", "rate", 1, create_score(overlap=0.4, error_rate=0.2))))
    assert verdict.pays is None
    assert "20.0% of the requests were refused" in verdict.headline.text


def test_no_schedule_helps_a_machine_that_is_too_slow_alone() -> None:
    alone = create_score()
    slow = create_score(ttft_p95=9.0, overlap=0.5)
    findings = create_findings(create_row("R1", "rate", 1, slow), create_row("R2", "overlap", 1, alone))
    findings.aims = Aims(ttft_s=0.05)
    verdict = judge(findings)
    assert "Even one request at a time" in verdict.headline.text
    assert verdict.headline.rows == ["R2"]


def test_the_cheapest_setting_that_meets_the_targets_is_advised_with_its_gain() -> None:
    verdict = judge(
        create_findings(
            create_row(
                "R1",
                "rate",
                1,
                create_score(ttft_p95=5.0, overlap=0.5),
            ),
            create_row("R2", "rate", 1, create_score(ttft_p95=1.0, busy_s_per_answer=2.0), max_num_seqs="4"),
            create_row("R3", "rate", 1, create_score(ttft_p95=1.5, busy_s_per_answer=1.0), max_num_seqs="16"),
        )
    )
    assert verdict.settings == {"scheduler.max_num_seqs": "16"}
    assert "The base line misses: TTFT p95 5.00 s, wanted 2 s" in sentence(verdict, "setting").text
    assert verdict.gain is not None
    assert "TTFT p95 5 → 1.5 s" in verdict.gain.text
    assert verdict.gain.rows == ["R1", "R3"]


def test_equal_costs_change_nothing() -> None:
    verdict = judge(
        create_findings(
            create_row("R1", "rate", 1, create_score(overlap=0.5, busy_s_per_answer=1.02)),
            create_row("R2", "rate", 1, create_score(busy_s_per_answer=1.0), max_num_seqs="4"),
        )
    )
    assert verdict.settings == {}


def test_prices_decide_where_they_are_known() -> None:
    verdict = judge(
        create_findings(
            create_row("R1", "rate", 1, create_score(overlap=0.5, busy_s_per_answer=1.0, cost=0.02)),
            create_row("R2", "rate", 1, create_score(busy_s_per_answer=3.0, cost=0.01), max_num_seqs="4"),
        )
    )
    assert verdict.settings == {"scheduler.max_num_seqs": "4"}
    assert "0.01000 EUR per accepted answer" in sentence(verdict, "setting").text


def test_when_nothing_meets_the_targets_the_closest_is_named() -> None:
    verdict = judge(
        create_findings(
            create_row("R1", "rate", 1, create_score(ttft_p95=8.0, overlap=0.5)),
            create_row("R2", "rate", 1, create_score(ttft_p95=4.0), max_num_seqs="4"),
        )
    )
    assert verdict.settings == {}
    assert "“max_num_seqs=4” comes closest" in sentence(verdict, "setting").text


def test_highest_rate_is_the_last_before_the_first_that_misses() -> None:
    rates = {0.5: 0.3, 1: 0.4, 2: 5.0, 4: 0.5}
    rows = [
        create_row(f"R{n}", "rate", rate, create_score(ttft_p95=ttft, overlap=0.5, offered_rps=rate))
        for n, (rate, ttft) in enumerate(rates.items())
    ]
    found = sentence(judge(create_findings(*rows)), "rate")
    assert "1.00 requests/s (rate × 1)" in found.text
    assert "at 2.00 requests/s (rate × 2): TTFT p95 5.00 s" in found.text
    assert found.rows == ["R1", "R2"]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"phases": [0.1, 2.0, 0.2]}, "bounded and empties again"),
        ({"phases": [0.1, 2.0, 3.0]}, "latency grows"),
        ({"phases": [0.1, 2.0, 0.2], "num_rejected": 3}, "it rejects"),
    ],
)
def test_a_spike_ends_in_one_of_three_ways(figures: dict[str, object], words: str) -> None:
    spike = create_row("R3", "spike", 4, create_score(**figures))  # type: ignore[arg-type]
    found = sentence(judge(busy_house(spike)), "spike")
    assert words in found.text
    assert found.rows == ["R3"]


def test_kv_pressure_is_unstable_when_the_cache_had_no_room() -> None:
    stable = sentence(judge(create_findings(create_row("R1", "rate", 1, create_score()))), "memory")
    assert "is stable with a context of 4096 tokens" in stable.text
    tight = create_score(num_out_of_room=3, num_preemptions=9)
    unstable = sentence(judge(create_findings(create_row("R1", "rate", 1, tight))), "memory")
    assert "not stable" in unstable.text
    assert "no room 3 times" in unstable.text


def test_repeat_agrees_within_a_tenth() -> None:
    def repeat(*throughputs: float) -> Sentence:
        scores = [create_score(tokens_per_s=each) for each in throughputs]
        return sentence(judge(create_findings(create_row("R1", "rate", 1, *scores))), "repeat")

    assert "The rounds agree" in repeat(100, 105).text
    assert "differ by 18%" in repeat(100, 120).text


def test_figures_in_doubt_are_said_to_be() -> None:
    doubtful = create_score(tokens_per_s_1=100.0, tokens_per_s_2=40.0, lateness_p95=0.2)
    verdict = judge(create_findings(create_row("R1", "rate", 1, doubtful)))
    texts = [each.text for each in verdict.sentences if each.topic == "doubt"]
    assert len(texts) == 2


def test_every_sentence_about_a_measurement_cites_rows_that_exist() -> None:
    findings = busy_house(create_row("R3", "spike", 4, create_score(phases=[0.1, 0.2, 0.1])))
    verdict = judge(findings)
    ids = {row.id for row in findings.rows}
    for each in (verdict.headline, *verdict.sentences):
        assert set(each.rows) <= ids
        assert each.rows or "not measured" in each.text or "One round only" in each.text


def test_advised_lines_are_a_configuration() -> None:
    lines = config_lines({"scheduler.mode": "single", "scheduler.max_num_seqs": "4", "classes.voice.max_waiting": "2"})
    assert lines == "scheduler:\n  mode: single\n  max_num_seqs: 4\nclasses:\n  voice:\n    max_waiting: 2"
    load(None, env={}, overrides=[("scheduler.mode", "single")])


def test_a_verdict_needs_a_row_of_the_base_line() -> None:
    with pytest.raises(ValueError, match="base line"):
        judge(create_findings(create_row("R1", "overlap", 1, create_score())))
