"""The comparison behind `homeai simulate`, and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from homeai import config
from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation import traces, workload
from homeai.evaluation.cost_model import SMALL_CPU, MeasuredCost
from homeai.evaluation.simulate import MODES, arrivals_of, compare, cost_of
from tests.evaluation.test_cost_fit import steps_of


def settings(*overrides: tuple[str, str]) -> Config:
    return config.load(None, env={}, overrides=overrides)


def test_every_mode_serves_the_same_requests() -> None:
    comparison = compare(settings(), "overlap", traces.overlap(11), MODES, SMALL_CPU)
    assert list(comparison.modes) == list(MODES)
    assert {summary.num_output_tokens for summary in comparison.modes.values()} == {8 * 64}
    assert not comparison.is_estimate


def test_settings_reach_the_scheduler() -> None:
    one_seat = compare(settings(("scheduler.max_num_seqs", "1")), "", traces.overlap(11), ["continuous"], SMALL_CPU)
    assert one_seat.modes["continuous"].mean_rows == pytest.approx(1.0)


def test_partitions_hold_shorter_requests_and_no_foreign_cells() -> None:
    arrivals = traces.household(11)
    unified, partitioned = (
        compare(settings(("scheduler.kv_layout", layout)), "", arrivals, ["continuous"], SMALL_CPU).modes["continuous"]
        for layout in ("unified", "partitioned")
    )
    assert unified.overall.num_completed == partitioned.overall.num_completed == 55
    assert partitioned.wall_s != unified.wall_s
    tight = settings(("scheduler.kv_layout", "partitioned"), ("scheduler.kv_cells", "8192"))
    refused = compare(tight, "", arrivals, ["continuous"], SMALL_CPU).modes["continuous"]
    assert refused.classes["background"].num_refused == 5


def test_card_gives_an_estimate_and_faster_steps() -> None:
    cost = cost_of("rtx-5090", "8b-q4", None, None)
    comparison = compare(settings(), "overlap", traces.overlap(11), ["continuous"], cost)
    assert comparison.is_estimate
    assert "ESTIMATE" in comparison.cost
    assert comparison.modes["continuous"].tokens_per_s > 500


def test_more_cells_than_the_card_holds_are_refused() -> None:
    cost = cost_of("rtx-3060", "8b-q4", None, None)
    with pytest.raises(ConfigError, match=r"kv_cells: 90,000 is not allowed: at most 44,\d\d\d fit beside 8B Q4_K_M"):
        compare(settings(("scheduler.kv_cells", "90000")), "overlap", traces.overlap(11), ["continuous"], cost)


def test_what_is_not_known_is_refused() -> None:
    arrivals = traces.overlap(11)
    with pytest.raises(ConfigError, match="--mode fast: known are auto, continuous"):
        compare(settings(), "overlap", arrivals, ["fast"], SMALL_CPU)
    stranger = [msgspec.structs.replace(arrivals[0], fairness_class="vip")]
    with pytest.raises(ConfigError, match="class 'vip' is none of voice, interactive"):
        compare(settings(), "overlap", stranger, ["continuous"], SMALL_CPU)
    with pytest.raises(ConfigError, match="neither a file nor one of household"):
        arrivals_of("nonsense", 11, 1.0)
    with pytest.raises(ConfigError, match="it cannot be combined"):
        cost_of("rtx-5090", "8b-q4", Path("cost.json"), None)


def test_workload_comes_from_a_file_and_scale_applies(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    workload.save(traces.household(12), path)
    assert arrivals_of(str(path), 11, 2.0) == workload.scaled(traces.household(12), 2.0)


def test_fitted_step_times_are_kept_and_used_again(tmp_path: Path) -> None:
    log, fitted = tmp_path / "steps.jsonl", tmp_path / "cost.json"
    log.write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps_of(1)))
    cost = cost_of(None, "8b-q4", fitted, log)
    assert cost_of(None, "8b-q4", fitted, None) == cost == MeasuredCost.load(fitted)
    assert "600 steps" in cost.label


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homeai", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_prints_a_table_or_json() -> None:
    shown = run_cli("--workload", "overlap", "--mode", "continuous", "--mode", "single")
    assert shown.returncode == 0
    assert "continuous" in shown.stdout
    assert "single" in shown.stdout
    figures = json.loads(run_cli("--workload", "overlap", "--mode", "single", "--json", "--seed", "12").stdout)
    assert figures["modes"]["single"]["classes"]["interactive"]["num_completed"] == 8


def test_command_says_a_mistake_in_one_line() -> None:
    failed = run_cli("--preset", "voodoo-2")
    assert failed.returncode == 2
    assert failed.stderr.startswith("homeai: --preset voodoo-2: known are rtx-5090")
    assert failed.stderr.count("\n") == 1
