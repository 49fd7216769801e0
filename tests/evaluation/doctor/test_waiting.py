"""Waiting: for seats that there is memory for, for a class, for the model, for a device that idles."""

from __future__ import annotations

import pytest

from homeai.evaluation.doctor.checks import admission, busy_cpu, device_idle, kv, refusals
from homeai.evaluation.doctor.facts import Busy
from homeai.vitals import EngineIO
from tests.evaluation.doctor.factories import (
    GIB,
    GPU,
    create_config,
    create_facts,
    create_machine,
    create_row,
    create_slice,
    create_status,
    create_vitals,
)


def waiting(reason: str, seconds: float = 120.0, **changes: object) -> object:
    fields = {"max_running": 8, "max_waiting": 12, "max_kv_used": 3000, "reasons": {reason: seconds}} | changes
    return create_vitals(create_slice(**fields))


# ---- admission -----------------------------------------------------------------------------------------


def test_seats_that_are_all_taken_while_cells_are_free_are_to_be_more() -> None:
    finding = admission.check(create_facts(vitals=waiting("sequence_slot")))
    assert finding is not None
    assert finding.settings == {"scheduler.max_num_seqs": "20"}
    assert "3,000 of 16,384 cells" in finding.evidence[2]


@pytest.mark.parametrize(
    "vitals",
    [
        waiting("sequence_slot", 29.0),  # less than half a request, on average
        waiting("sequence_slot", max_kv_used=12_000),  # the cells are in use
        waiting("sequence_slot", num_busy_samples=4),
        waiting("sequence_slot", 19.0, num_busy_samples=10),  # a crowd that came at once
        waiting("not_resident"),
        waiting("kv_space"),
    ],
)
def test_little_waiting_and_waiting_for_something_else_are_no_matter_of_admission(vitals: object) -> None:
    assert admission.check(create_facts(vitals=vitals)) is None


def test_advised_seats_never_exceed_what_the_cells_hold_nor_four_times_as_many() -> None:
    facts = create_facts(vitals=waiting("sequence_slot", max_waiting=200, max_kv_used=11_000))
    assert admission.check(facts).settings == {"scheduler.max_num_seqs": "10"}
    facts = create_facts(vitals=waiting("sequence_slot", max_waiting=200, max_kv_used=800))
    assert admission.check(facts).settings == {"scheduler.max_num_seqs": "32"}


@pytest.mark.parametrize(
    ("reason", "setting", "advised"),
    [
        ("single_mode", ("scheduler.mode", "single"), {"scheduler.mode": "auto"}),
        ("batch_mode", ("scheduler.mode", "static"), {"scheduler.mode": "auto"}),
        ("class_cap", ("classes.interactive.max_running", "1"), {"classes.interactive.max_running": "2"}),
        ("source_cap", ("sources", "[{name: ana, class: interactive, max_running: 1}]"), {}),
    ],
)
def test_what_keeps_them_out_is_named(reason: str, setting: tuple[str, str], advised: dict[str, str]) -> None:
    finding = admission.check(create_facts(vitals=waiting(reason), config=create_config(setting)))
    assert finding is not None
    assert finding.settings == advised
    assert setting[1].rstrip("}]")[-1] in finding.cause


# ---- cells ---------------------------------------------------------------------------------------------


def parked(count: int) -> list[object]:
    sizes = {"num_prompt": 2000, "num_output": 1000}
    return [create_row(i, num_preemptions=int(i < count), parked_s=2.0, **sizes) for i in range(20)]


FULL = create_vitals(create_slice(max_running=8, max_kv_used=16_000))


def test_parked_requests_and_a_full_cache_want_more_cells_where_there_is_memory() -> None:
    finding = kv.check(create_facts(vitals=FULL, rows=parked(5)))
    assert finding is not None
    assert finding.settings == {"scheduler.kv_cells": "24064"}  # 8 × 3,000, in steps of 256
    assert any("max_num_seqs is 8" in each for each in finding.advice)


def test_without_memory_for_them_they_are_to_be_smaller() -> None:
    finding = kv.check(create_facts(vitals=FULL, rows=parked(5), status=create_status(available_bytes=GIB)))
    assert finding.settings == {"model.kv_type": "q8_0", "scheduler.kv_cells": "32768"}


def test_quantised_already_and_no_memory_means_fewer_at_once() -> None:
    facts = create_facts(
        vitals=FULL,
        rows=parked(5),
        status=create_status(available_bytes=GIB),
        config=create_config(("model.kv_type", "q8_0")),
    )
    assert kv.check(facts).settings == {"scheduler.max_num_seqs": "5"}


def test_on_a_gpu_its_own_memory_counts() -> None:
    gpu = create_status(device="cuda", gpu=GPU, kv_bytes=8 * GIB)
    assert kv.check(create_facts(vitals=FULL, rows=parked(5), status=gpu)).settings["scheduler.kv_cells"] == "24064"
    full = create_status(device="cuda", gpu=type(GPU)("RTX", 31 * GIB, 32 * GIB, 0.9), kv_bytes=8 * GIB)
    assert "model.kv_type" in kv.check(create_facts(vitals=FULL, rows=parked(5), status=full)).settings


def test_waiting_for_cells_counts_without_anybody_parked() -> None:
    def waited(request_s: float) -> object:
        slice_ = create_slice(max_running=4, max_kv_used=16_000, reasons={"kv_space": request_s})
        return kv.check(create_facts(vitals=create_vitals(slice_), rows=parked(0)))

    assert waited(30.0) is not None
    assert waited(29.0) is None


def test_parking_for_a_spoken_question_is_no_pressure() -> None:
    roomy = create_vitals(create_slice(max_kv_used=9_000))
    assert kv.check(create_facts(vitals=roomy, rows=parked(10))) is None
    assert kv.check(create_facts(vitals=FULL, rows=parked(2))) is None


# ---- refusals ------------------------------------------------------------------------------------------


def refused(count: int, reason: str, **changes: object) -> list[object]:
    return [
        *(create_row(i, ttft_s=None, num_output=0, status=429, reject_reason=reason, **changes) for i in range(count)),
        *(create_row(100 + i) for i in range(60)),
    ]


def test_queue_that_is_too_short_is_told_from_one_that_is_too_slow() -> None:
    soon = refusals.check(create_facts(rows=refused(6, "rate_limit_exceeded")))
    assert soon.settings == {"classes.interactive.max_waiting": "128"}
    slow = [*refused(6, "rate_limit_exceeded"), *(create_row(i, queue_s=30.0, ttft_s=31.0) for i in range(20))]
    late = refusals.check(create_facts(rows=slow))
    assert late.settings == {}
    assert "More comes than is served" in late.cause


def test_context_that_is_too_short_is_told_with_its_length() -> None:
    finding = refusals.check(create_facts(rows=refused(6, "context_length_exceeded")))
    assert "8,192 tokens" in finding.cause
    assert finding.settings == {"scheduler.max_model_len": "16384", "scheduler.kv_cells": "16384"}


def test_requests_that_come_too_slowly_point_to_the_network() -> None:
    slow = [
        create_row(i, ttft_s=None, num_output=0, status=408, reject_reason="invalid_request_error") for i in range(6)
    ]
    assert "network" in refusals.check(create_facts(rows=slow)).cause


def test_unknown_keys_are_told() -> None:
    assert "API key" in refusals.check(create_facts(rows=refused(6, "invalid_api_key"))).cause


@pytest.mark.parametrize("rows", [refused(4, "rate_limit_exceeded"), refused(6, "model_not_found")])
def test_few_refusals_and_a_client_s_own_mistakes_are_nobody_s_trouble(rows: list[object]) -> None:
    assert refusals.check(create_facts(rows=rows)) is None


def test_few_of_very_many_are_usual() -> None:
    rows = [*refused(6, "rate_limit_exceeded"), *(create_row(i) for i in range(100))]
    assert refusals.check(create_facts(rows=rows)) is None


# ---- the device ----------------------------------------------------------------------------------------


def test_steps_that_do_not_follow_one_another_are_an_idle_device() -> None:
    facts = create_facts(vitals=create_vitals(create_slice(step_s=41.0)))
    finding = device_idle.check(facts)
    assert finding is not None
    assert "stopped" in finding.cause
    assert device_idle.check(create_facts(vitals=create_vitals(create_slice(step_s=43.0)))) is None


def test_front_end_that_comes_late_points_to_the_cpu() -> None:
    machine = create_machine(others=[Busy(99, "ffmpeg", 7.5)], others_cpus=7.5)
    vitals = create_vitals(create_slice(step_s=20.0, max_lag_s=0.4))
    assert "ffmpeg, 99" in device_idle.check(create_facts(vitals=vitals, machine=machine)).cause


def test_model_that_is_read_again_and_again_points_to_storage() -> None:
    vitals = create_vitals(create_slice(step_s=20.0), engine_io=EngineIO(3 * GIB, 100_000))
    assert "storage" in device_idle.check(create_facts(vitals=vitals)).cause


def test_gpu_that_waits_for_the_cpu_between_steps_is_found_by_both_figures() -> None:
    gpu = create_status(device="cuda", gpu=GPU)
    slow = create_vitals(create_slice(gpu_load=0.3, host_s=30.0))
    assert "CPU" in device_idle.check(create_facts(status=gpu, vitals=slow)).cause
    for vitals in (create_vitals(create_slice(gpu_load=0.3)), create_vitals(create_slice(gpu_load=0.9, host_s=30.0))):
        assert device_idle.check(create_facts(status=gpu, vitals=vitals)) is None


def test_little_work_says_nothing_about_the_device() -> None:
    assert device_idle.check(create_facts(vitals=create_vitals(create_slice(num_busy_samples=4, step_s=0.0)))) is None


def test_waiting_for_the_model_is_told_by_policy() -> None:
    away = create_vitals(create_slice(reasons={"not_resident": 12.0}))
    idle = create_facts(vitals=away, status=create_status(policy="idle"))
    assert device_idle.check_away(idle).settings == {"residency.idle_timeout_s": "3600"}
    assert "the owner" in device_idle.check_away(create_facts(vitals=away)).advice[0]
    soon = create_vitals(create_slice(reasons={"not_resident": 9.0}))
    assert device_idle.check_away(create_facts(vitals=soon)) is None


def test_paused_class_counts_only_while_somebody_waits_for_it() -> None:
    status = create_status(paused=["background"])
    waits = create_vitals(create_slice(reasons={"paused": 20.0}))
    assert "`homeai resume background`" in device_idle.check_paused(create_facts(status=status, vitals=waits)).advice
    assert device_idle.check_paused(create_facts(status=status)) is None
    assert device_idle.check_paused(create_facts(vitals=waits)) is None


def test_busy_neighbours_count_where_the_model_is_on_the_cpu_and_was_asked() -> None:
    others = {"others": [Busy(99, "ffmpeg", 4.0)], "others_cpus": 4.0}
    finding = busy_cpu.check(create_facts(machine=create_machine(**others)))
    assert finding is not None
    assert "ffmpeg (99) 4.0" in finding.evidence[0]
    assert finding.settings == {"model.num_threads": "4"}
    for facts in (
        create_facts(machine=create_machine(**others | {"others_cpus": 3.9})),
        create_facts(machine=create_machine(**others), status=create_status(device="cuda")),
        create_facts(machine=create_machine(**others), vitals=create_vitals(create_slice(num_busy_samples=4))),
    ):
        assert busy_cpu.check(facts) is None
