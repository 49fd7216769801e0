"""Latency: long prompts, busy times, tokens made on the CPU, clients that ask one by one or leave too soon."""

from __future__ import annotations

import pytest

from homeai.evaluation.doctor.checks import clients, long_prompts, serial, tail, tokenising
from homeai.vitals import Tokenised
from tests.evaluation.doctor.factories import create_config, create_facts, create_machine, create_row, create_vitals


def long_row(at: float, ttft_s: float = 8.0, **changes: object) -> object:
    fields = {"source": "reader", "num_prompt": 2000, "num_output": 20, "queue_s": 0.1, "e2e_s": ttft_s + 1} | changes
    return create_row(at, ttft_s=ttft_s, **fields)


# ---- long prompts --------------------------------------------------------------------------------------


def test_long_prompts_that_miss_their_target_by_their_own_reading_get_a_length_that_fits() -> None:
    finding = long_prompts.check(create_facts(rows=[*map(long_row, range(0, 80, 10)), create_row(500)]))
    assert finding is not None
    assert "prefill-heavy: 8 requests" in finding.evidence[0]
    assert "decode-heavy: 1 requests" in finding.evidence[1]
    assert "253 tokens/s" in finding.evidence[3]  # 2,000 in 7.9 s
    assert "506 tokens" in finding.advice[0]  # in 2 s
    assert "background" in finding.advice[1]


def test_pieces_too_small_to_keep_the_device_busy_are_named() -> None:
    config = create_config(("scheduler.max_num_batched_tokens", "64"))
    finding = long_prompts.check(create_facts(rows=[*map(long_row, range(0, 80, 10))], config=config))
    assert finding.settings == {"scheduler.max_chunk_tokens": "256", "scheduler.max_num_batched_tokens": "512"}


def test_target_that_no_document_meets_is_out_of_reach_itself() -> None:
    config = create_config(("classes.interactive.ttft_target_s", "0.1"), ("model.num_threads", "2"))
    finding = long_prompts.check(create_facts(rows=[*map(long_row, range(0, 80, 10))], config=config))
    assert finding.settings == {"classes.interactive.ttft_target_s": "8", "model.num_threads": "8"}


@pytest.mark.parametrize(
    "rows",
    [
        [long_row(i, 1.9) for i in range(8)],  # within the target
        [long_row(i, fairness_class="background") for i in range(8)],  # which has none
        [long_row(i, queue_s=7.0) for i in range(8)],  # the queue's fault
        [long_row(i, num_cached=1600) for i in range(8)],  # most was in the cache
        [long_row(i) for i in range(3)],
    ],
)
def test_long_prompts_in_time_or_late_for_another_reason_are_no_finding(rows: list[object]) -> None:
    assert long_prompts.check(create_facts(rows=rows)) is None


def beside(slow_s: float) -> list[object]:
    """Short ones alone, and some that came while a long prompt was read."""
    alone = [create_row(200 + 10 * i) for i in range(6)]
    return [*alone, long_row(0, 30.0), *(create_row(1 + i, ttft_s=slow_s, e2e_s=slow_s + 1) for i in range(6))]


def test_short_requests_behind_a_long_prompt_want_chunks_that_keep_the_gap() -> None:
    config = create_config(("scheduler.chunked_prefill", "false"))
    finding = long_prompts.check_others(create_facts(rows=beside(9.0), config=config, itl_p95_s={"interactive": 0.4}))
    assert finding is not None
    assert finding.settings == {"scheduler.chunked_prefill": "true", "scheduler.max_chunk_tokens": "32"}
    assert "interactive 400 ms" in finding.evidence[3]


@pytest.mark.parametrize(
    ("setting", "advised"),
    [
        (("scheduler.adaptive_budget", "false"), "scheduler.adaptive_budget"),
        (("scheduler.mode", "single"), "scheduler.mode"),
    ],
)
def test_other_ways_to_wait_for_a_long_prompt_are_told_apart(setting: tuple[str, str], advised: str) -> None:
    assert advised in long_prompts.check_others(create_facts(rows=beside(9.0), config=create_config(setting))).settings


def test_where_the_settings_are_good_the_reader_gets_a_class_that_yields() -> None:
    finding = long_prompts.check_others(create_facts(rows=beside(9.0)))
    assert finding.settings == {}
    assert "Give reader a class" in finding.advice[0]


@pytest.mark.parametrize("slow_s", [0.5, 1.9])
def test_short_requests_in_time_beside_a_long_prompt_are_fine(slow_s: float) -> None:
    assert long_prompts.check_others(create_facts(rows=beside(slow_s))) is None


# ---- busy times ----------------------------------------------------------------------------------------


def evening(slow_s: float, num_output: int = 50) -> list[object]:
    """One by one, then sixty within six seconds."""
    calm = [create_row(5 * i) for i in range(40)]
    busy = [
        create_row(300 + i / 10, ttft_s=slow_s, e2e_s=slow_s + 3, num_output=num_output, source="agent")
        for i in range(60)
    ]
    return [*calm, *busy]


def test_more_done_at_a_worse_p95_limits_admission() -> None:
    finding = tail.check(create_facts(rows=evening(9.0)))
    assert finding is not None
    assert "tokens/s" in finding.evidence[0]
    assert finding.settings["classes.interactive.queue_timeout_s"] == "4"
    assert int(finding.settings["classes.interactive.max_waiting"]) < 64
    assert any("Or give agent a class" in each for each in finding.advice) is False  # it is all there is at busy times


def test_heavy_source_among_others_gets_a_class_of_its_own() -> None:
    rows = [*evening(9.0), *(create_row(301 + i, ttft_s=9.0, e2e_s=12.0, source="ben") for i in range(5))]
    assert any("give agent a class of its own" in each for each in tail.check(create_facts(rows=rows)).advice)


@pytest.mark.parametrize(
    "rows",
    [
        evening(1.9),  # within the target
        evening(9.0, num_output=1),  # not more is done
        evening(9.0)[:40],  # no busy times
    ],
)
def test_busy_times_that_are_served_in_time_or_gain_nothing_are_no_finding(rows: list[object]) -> None:
    assert tail.check(create_facts(rows=rows)) is None


# ---- tokens --------------------------------------------------------------------------------------------


def test_texts_that_wait_for_a_thread_are_told_from_those_that_are_long() -> None:
    waits = create_vitals(tokenised=[Tokenised(200_000, 0.8, 0.2)] * 5)
    assert "at once" in tokenising.check(create_facts(vitals=waits)).cause
    long = create_vitals(tokenised=[Tokenised(900_000, 0.0, 0.6)] * 5)
    assert "themselves" in tokenising.check(create_facts(vitals=long)).cause


def test_model_that_takes_all_cpus_leaves_one_to_the_front_end() -> None:
    slow = create_vitals(tokenised=[Tokenised(50_000, 0.1, 0.6)] * 5)
    finding = tokenising.check(create_facts(vitals=slow, machine=create_machine(num_cpus=4)))
    assert finding.settings == {"model.num_threads": "3"}


def test_few_or_quick_texts_are_fine() -> None:
    for texts in ([Tokenised(900_000, 1.0, 1.0)] * 3, [Tokenised(900_000, 0.1, 0.3)] * 9):
        assert tokenising.check(create_facts(vitals=create_vitals(tokenised=texts))) is None


# ---- clients -------------------------------------------------------------------------------------------


def one_by_one(count: int, pause_s: float = 0.1, **changes: object) -> list[object]:
    return [create_row(i * (1 + pause_s), source="script", prefix_hashes=[str(i)], **changes) for i in range(count)]


def test_client_that_asks_one_by_one_could_ask_several_at_once() -> None:
    finding = serial.check(create_facts(rows=one_by_one(25)))
    assert finding is not None
    assert "25 requests of script" in finding.evidence[0]
    assert "4 at once" in finding.advice[0]


def test_people_agents_and_busy_houses_do_not_serialise() -> None:
    people = one_by_one(25, pause_s=0.8)
    agent = [
        create_row(1.1 * i, source="agent", num_prompt=100 + 60 * i, prefix_hashes=[*map(str, range(i + 1))])
        for i in range(25)
    ]
    company = [create_row(0, e2e_s=30.0, source="ben"), *one_by_one(25)]
    coder = one_by_one(25, fairness_class="coding")
    for rows in (people, agent, coder, company, one_by_one(19)):
        assert serial.check(create_facts(rows=rows)) is None


def left(count: int, e2e_s: float = 5.0) -> list[object]:
    rows = [create_row(i, status=499, e2e_s=e2e_s, finish_reason="abort", source="tv") for i in range(count)]
    return [*rows, *(create_row(100 + i, e2e_s=8.0, source="tv") for i in range(10))]


def test_client_that_leaves_after_the_same_time_has_a_timeout_too_short() -> None:
    finding = clients.check(create_facts(rows=left(6)))
    assert finding is not None
    assert "12.0 s or more" in finding.advice[0]  # half as long again as its whole answers


def test_people_who_stop_answers_now_and_then_are_no_finding() -> None:
    at_will = [create_row(i, status=499, e2e_s=float(i + 1), source="tv") for i in range(8)]
    for rows in (left(4), at_will):
        assert clients.check(create_facts(rows=rows)) is None
