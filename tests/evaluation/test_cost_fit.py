from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from homeai.errors import ConfigError
from homeai.evaluation.cost_fit import COEFFICIENTS, MeasuredStep, error_of, fit, load_steps
from tests.evaluation.factories import COST, create_measured_step

MACHINE = msgspec.structs.replace(
    COST,
    decode_attended_s=4e-8,
    mixed_attended_s=5e-7,
    mixed_output_s=0.009,
    mixed_near_s=2e-7,
    mixed_pair_s=0.0002,
    arrival_s=0.007,
)


def steps_of(seed: int, *, noise: float = 0.0, count: int = 600) -> list[MeasuredStep]:
    """Steps as `MACHINE` has them, each off by up to `noise`."""
    rng, steps = random.Random(seed), []
    for number in range(count):
        prefill = rng.randint(1, 256) if number % 2 else 0
        rows = rng.choice((0, 1, 2, 4, 8) if prefill else (1, 2, 4, 8))
        shape = {
            "prefill": prefill,
            "rows": rows,
            "context": rng.randint(100, 6000),
            "cells": rng.randint(100, 15_000),
            "attended": rng.randint(10, 2000) * (prefill + rows),
            "num_near_tokens": rng.randint(10, 512) * (prefill + rows),
            "num_outputs": rows or rng.choice((0, 1)),
            "num_arrived": rng.choice((0, 0, 0, 1, 2)),
        }
        step = create_measured_step(1.0, **shape)
        seconds = MACHINE.step_s(step.shape) + (MACHINE.arrival_s * step.num_arrived if prefill else 0.0)
        steps.append(msgspec.structs.replace(step, step_s=seconds * rng.uniform(1 - noise, 1 + noise)))
    return steps


def test_fit_finds_the_model_that_the_steps_came_from() -> None:
    cost = fit(steps_of(1), "here")
    assert cost.decode_s == [(rows, pytest.approx(s)) for rows, s in MACHINE.decode_s if rows <= 8]
    for name in COEFFICIENTS:
        assert getattr(cost, name) == pytest.approx(getattr(MACHINE, name)), name
    assert cost.error is not None
    assert cost.error.p95 < 1e-6


def test_noise_shows_in_the_error_and_not_in_the_total() -> None:
    cost = fit(steps_of(1, noise=0.2), "here")
    error = error_of(cost, steps_of(2, noise=0.2))
    assert 0.05 < error.median < 0.15
    assert abs(error.total) < 0.02


def test_no_coefficient_is_negative_even_where_the_data_ask_for_it() -> None:
    rng, steps = random.Random(4), []
    for _ in range(200):
        prefill, rows, cells = rng.choice((0, 50)), rng.randint(1, 8), rng.randint(0, 900)
        seconds = 0.1 + 0.001 * prefill - 0.0002 * rows
        steps.append(create_measured_step(seconds, prefill=prefill, rows=rows, cells=cells))
    cost = fit(steps, "here")
    assert min(getattr(cost, name) for name in COEFFICIENTS) >= 0
    assert min(seconds for _, seconds in cost.decode_s) >= 0


def test_rare_numbers_of_rows_are_no_points_of_their_own() -> None:
    odd = [create_measured_step(9.0, rows=7)]
    assert 7 not in dict(fit(steps_of(1) + odd, "here").decode_s)


def test_too_few_steps_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="5 steps with prefill and 5 without it: a fit needs 20 of each"):
        fit(steps_of(1, count=10), "here")


def test_log_of_the_engine_is_read_and_idle_steps_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    step = create_measured_step(0.05, prefill=10, rows=2, forward_s=0.04, num_arrived=1)
    more = {"at": 1.5, "mode": "continuous"}
    lines = [msgspec.to_builtins(step) | more, msgspec.to_builtins(create_measured_step(0.001))]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert load_steps(path) == [step]


def test_bad_line_of_a_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"num_prefill_tokens": 1}\n')
    with pytest.raises(ConfigError, match="line 1: not a step"):
        load_steps(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_steps(tmp_path / "none")
