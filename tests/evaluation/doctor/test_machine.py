"""The machine: memory, heat, power, loading, CUDA, driver, disk, permissions, systemd; and a daemon that is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homeai.evaluation.doctor.checks import graphics, house, loading, memory, silence, state, thermal
from homeai.evaluation.doctor.facts import Access, Build, Disk, Event, GPUHealth, Listener, Quiet, Silence, Unit
from homeai.vitals import EngineIO
from tests.evaluation.doctor.factories import (
    GIB,
    NOW,
    create_config,
    create_facts,
    create_graphics,
    create_machine,
    create_status,
    create_vitals,
)

# ---- memory --------------------------------------------------------------------------------------------


def test_model_that_does_not_fit_is_told_with_what_the_daemon_says() -> None:
    failed = create_status(state="failed", failure="model.gguf does not fit: it needs 9.0 GiB of memory")
    finding = memory.check(create_facts(status=failed))
    assert finding.settings == {"scheduler.kv_cells": "8192", "model.kv_type": "q8_0"}
    assert "9.0 GiB" in finding.evidence[0]
    assert memory.check(create_facts()) is None
    assert state.check(create_facts(status=failed)) is None  # once is enough


def test_what_was_changed_to_fit_is_a_hint_with_the_lines_in_force() -> None:
    note = "scheduler.kv_cells is 8192 instead of 16384: that does not fit into memory"
    facts = create_facts(status=create_status(notes=[note]))
    assert memory.check_reduced(facts).settings == {"scheduler.kv_cells": "8192"}
    assert state.check_notes(facts) is None
    assert memory.check_reduced(create_facts(status=create_status(notes=["something else"]))) is None


def test_machine_without_memory_left_is_told_at_a_twentieth() -> None:
    low = create_machine(available_bytes=32 * GIB // 20 - 1)
    assert memory.check_machine(create_facts(machine=low)).settings == {"scheduler.host_cache_mb": "0"}
    assert memory.check_machine(create_facts(machine=create_machine(available_bytes=32 * GIB // 20 + 1))) is None


# ---- heat, power, disk reads ---------------------------------------------------------------------------


def hot(*reasons: str, **figures: object) -> object:
    health = GPUHealth("RTX 5090", reasons, 93, 92, 380.0, 400.0, 575.0, 900, 2400)
    return create_facts(machine=create_graphics(health=replace(health, **figures)))  # type: ignore[arg-type]


def test_heat_is_told_by_the_driver_s_own_reason() -> None:
    finding = thermal.check(hot("sw_thermal_slowdown", "sw_power_cap"))
    assert finding.check == "thermal"
    assert "93 °C, slows down at 92 °C" in finding.evidence
    assert "-pl 320" in finding.advice[0]


def test_power_cap_counts_when_it_is_below_the_maker_s_and_costs_clock() -> None:
    assert thermal.check(hot("sw_power_cap")).check == "power-cap"
    assert thermal.check(hot("hw_power_brake_slowdown", power_limit_w=575.0)).check == "power-cap"
    for facts in (
        hot("sw_power_cap", clock_mhz=2300),  # hardly slower
        hot("sw_power_cap", power_limit_w=575.0),  # as the maker made it
        hot(),
        create_facts(),
    ):
        assert thermal.check(facts) is None


def test_hot_cpu_counts_where_the_model_is_on_it() -> None:
    machine = create_machine(cpu_throttle_events=3)
    assert thermal.check_cpu(create_facts(machine=machine)) is not None
    assert thermal.check_cpu(create_facts(machine=machine, status=create_status(device="cuda"))) is None
    assert thermal.check_cpu(create_facts()) is None


def test_second_load_from_the_disk_is_a_trouble_and_a_slow_first_one_a_hint() -> None:
    read = create_vitals(engine_io=EngineIO(GIB * 6 // 10, 1))
    again = loading.check(create_facts(vitals=read, status=create_status(num_loads=2, policy="idle")))
    assert (again.severity, again.settings) == ("trouble", {"residency.policy": "pinned"})
    startup = replace_startup(25.0)
    assert loading.check(create_facts(vitals=read, status=create_status(startup=startup))).severity == "hint"
    assert loading.check(create_facts(vitals=read)) is None  # the first load has to
    cached = create_vitals(engine_io=EngineIO(GIB * 4 // 10, 1))
    assert loading.check(create_facts(vitals=cached, status=create_status(num_loads=2))) is None


def replace_startup(total_s: float) -> object:
    return type(create_status().startup)(total_s, {}, None)  # type: ignore[misc]


# ---- the card ------------------------------------------------------------------------------------------

NO_CUDA, CUDA = Build(False, "0.3.36"), Build(True, "0.3.36")


def test_build_without_cuda_counts_where_there_is_a_card_and_it_is_wanted() -> None:
    facts = create_facts(machine=replace(create_graphics(), build=NO_CUDA))
    finding = graphics.check_build(facts)
    assert finding is not None
    assert "DGGML_CUDA=on" in finding.advice[0]
    for other in (
        create_facts(machine=replace(create_graphics(), build=CUDA)),
        create_facts(machine=create_machine(build=NO_CUDA)),
        create_facts(machine=replace(create_graphics(), build=NO_CUDA), config=create_config(("model.device", "cpu"))),
    ):
        assert graphics.check_build(other) is None


@pytest.mark.parametrize(
    ("error", "is_loaded", "cause"),
    [
        ("Driver/library version mismatch", True, "updated"),
        ("Driver Not Loaded", False, "module is not loaded"),
        ("Unknown Error", True, "in trouble"),
    ],
)
def test_driver_s_trouble_is_told_apart(error: str, is_loaded: bool, cause: str) -> None:
    machine = create_graphics(driver_error=error, module_loaded=is_loaded)
    assert cause in graphics.check_driver(create_facts(machine=machine)).cause


def test_device_files_of_others_are_a_driver_s_trouble_and_a_good_driver_is_none() -> None:
    closed = create_graphics(unusable_nodes=["/dev/nvidia0"])
    assert "/dev/nvidia0: may not be opened" in graphics.check_driver(create_facts(machine=closed)).evidence
    assert graphics.check_driver(create_facts(machine=create_graphics())) is None
    no_card = create_machine(graphics=replace(create_graphics(driver_error="Not Loaded").graphics, on_bus=()))
    assert graphics.check_driver(create_facts(machine=no_card)) is None


# ---- disk, permissions, systemd ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "total", "is_full"),
    [(GIB - 1, 500 * GIB, True), (GIB + 1, 500 * GIB, False), (GIB // 10, 2 * GIB, False), (GIB // 100, 2 * GIB, True)],
)
def test_disk_is_full_below_a_gigabyte_or_two_hundredths(free: int, total: int, is_full: bool) -> None:
    facts = create_facts(machine=create_machine(disks=[Disk("/data", free, total)]))
    assert (house.check_disk(facts) is not None) is is_full


def test_missing_files_are_told_from_those_that_may_not_be_used() -> None:
    def problem(text: str | None) -> object:
        access = Access("model file", "/m.gguf", "homeai", text)
        return house.check_permissions(create_facts(machine=create_machine(accesses=[access])))

    assert problem("it does not exist").check == "missing-files"  # type: ignore[attr-defined]
    closed = problem("it may not be read (mode -rw-------, of root)")
    assert closed.check == "permissions"  # type: ignore[attr-defined]
    assert "`chown -R homeai /m.gguf`" in closed.advice[0]  # type: ignore[attr-defined]
    assert problem(None) is None


def unit(**changes: object) -> Unit:
    fine = Unit("homeai.service", "system", "loaded", "active", "running", "success", 0, 0)
    return replace(fine, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"active_state": "failed", "result": "exit-code", "exit_code": 3}, "the model cannot be loaded"),
        ({"active_state": "failed", "result": "exit-code", "exit_code": 2}, "a setting cannot be used"),
        ({"active_state": "failed", "result": "watchdog"}, "hung"),
        ({"sub_state": "auto-restart", "result": "oom-kill"}, "memory ran out"),
        ({"num_restarts": 3, "result": "signal"}, "killed"),
    ],
)
def test_unit_that_failed_is_told_with_its_reason(changes: dict[str, object], cause: str) -> None:
    finding = house.check_systemd(create_facts(machine=create_machine(units=[unit(**changes)])))
    assert finding is not None
    assert cause in finding.cause


@pytest.mark.parametrize("changes", [{}, {"num_restarts": 2}, {"active_state": "inactive", "sub_state": "dead"}])
def test_unit_that_runs_or_is_stopped_on_purpose_is_fine(changes: dict[str, object]) -> None:
    assert house.check_systemd(create_facts(machine=create_machine(units=[unit(**changes)]))) is None


# ---- state ---------------------------------------------------------------------------------------------


def test_engine_that_died_is_counted_and_one_that_left_is_not() -> None:
    def events(*details: str) -> object:
        return create_facts(events=[Event(NOW - 100 + i, "state", detail) for i, detail in enumerate(details)])

    died = state.check_deaths(events("loading", "resident", "loading", "resident", "loading"))
    assert "2 times" in died.evidence[0]
    assert state.check_deaths(events("loading", "resident", "draining", "sleeping", "loading", "resident")) is None


def test_failed_and_stuck_loads_are_told_and_a_young_one_is_not() -> None:
    failed = create_status(state="failed", failure="not a GGUF file")
    assert "not a GGUF" in state.check(create_facts(status=failed)).cause
    stuck = create_status(state="loading", failure="llama.cpp sees no GPU")
    assert "no GPU" in state.check(create_facts(status=stuck)).cause
    assert state.check(create_facts(status=create_status(state="loading", uptime_s=30.0, num_loads=0))) is None
    assert state.check(create_facts(status=create_status(state="loading", uptime_s=90.0, num_loads=0))) is not None
    assert state.check(create_facts()) is None


def test_notes_of_the_daemon_are_a_hint() -> None:
    assert state.check_notes(create_facts(status=create_status(notes=["keys cannot be read"]))).severity == "hint"
    assert state.check_notes(create_facts()) is None


# ---- silence -------------------------------------------------------------------------------------------


def silent(**changes: object) -> object:
    machine = create_machine(**changes)
    refused = Silence(Quiet.REFUSED, "connection refused")
    return create_facts(status=None, vitals=None, silence=refused, machine=machine)


def test_port_of_another_program_is_told_with_its_name() -> None:
    finding = silence.check(silent(listener=Listener(8700, 77, "nginx", "www-data")))
    assert finding.check == "port-taken"
    assert "nginx (77, user www-data)" in finding.evidence[1]
    assert finding.settings == {"server.port": "8701"}
    hidden = silence.check(silent(listener=Listener(8700, None, None, "www-data")))
    assert "a program of www-data" in hidden.evidence[1]


def test_own_daemon_that_does_not_answer_is_hung() -> None:
    assert silence.check(silent(listener=Listener(8700, 77, "python", "homeai", True))).check == "hung"


def test_failed_unit_behind_its_own_socket_is_not_hung() -> None:
    failed = unit(active_state="failed", result="exit-code", exit_code=3)
    facts = silent(listener=Listener(8700, 1, "systemd", "root", True), units=[failed])
    assert silence.check(facts) is None  # `house` tells it
    assert house.check_systemd(facts) is not None


def test_nobody_there_is_told_by_what_is_installed() -> None:
    assert silence.check(silent()).check == "not-running"
    stopped = unit(active_state="inactive", sub_state="dead")
    assert silence.check(silent(units=[stopped])).check == "stopped"
    assert silence.check(silent(units=[replace(stopped, active_state="failed")])) is None  # `house` tells it
    assert silence.check(silent(accesses=[Access("model.path", "/m", "me", "it does not exist")])) is None


def test_settings_that_cannot_be_used_come_first() -> None:
    facts = replace(silent(), config=None, config_error="server.port 70000: at most 65535")  # type: ignore[type-var]
    assert silence.check(facts).check == "settings"


def test_key_that_is_missing_and_another_machine_are_no_cause_but_a_gap() -> None:
    locked = replace(silent(), silence=Silence(Quiet.LOCKED, "HTTP 401"))  # type: ignore[type-var]
    assert silence.check(locked) is None
    assert silence.check(replace(silent(), machine=None)) is None  # type: ignore[type-var]
    assert silence.check(create_facts()) is None
