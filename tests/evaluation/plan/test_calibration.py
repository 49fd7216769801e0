"""Few steps are enough: on a made-up machine exactly, on measured ones as well as is claimed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from homeai.errors import ConfigError
from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.plan.architecture import Numbers, of_numbers
from homeai.evaluation.plan.calibration import Calibration, Point, calibrate, points_of
from homeai.evaluation.plan.roofline import Rates, RooflineCost
from tests.evaluation.factories import create_measured_step

MODEL = of_numbers(
    Numbers(
        layers=18, hidden=640, heads=4, kv_heads=1, head_dim=256, ff=2048, vocab=262_144, tied=True, window=512,
        windowed_layers=15, bytes_per_weight=0.94,
    ),
    "small",
)  # fmt: skip
MACHINE = Rates(bandwidth=30e9, output_bandwidth=6e9, flops=100e9, bus=5e9, step_s=0.0004, row_s=0.0002, overlaps=False)


def made_up(num_prefill_tokens: int, rows: int, context: int) -> Point:
    cost = RooflineCost(MODEL, MACHINE, "", "", 0)
    shape = StepShape(num_prefill_tokens, rows, context, 0, context)
    step_s = cost.step_s(shape)
    return Point(num_prefill_tokens, rows, context, step_s, step_s - cost.host_s(shape))


# ms of (tokens of a prompt, rows), by scripts/bench-plan: the default model on one core of an EPYC, 3 rounds
RECORDED = {
    (0, 1): 12.8,
    (0, 8): 76.2,
    (8, 0): 27.9,
    (0, 2): 42.2,
    (0, 4): 60.3,
    (0, 16): 105.1,
    (64, 0): 124.9,
    (128, 0): 235.6,
    (256, 0): 474.4,
    (512, 0): 1011.5,
}


def test_steps_of_1_and_8_rows_predict_2_4_and_16_and_prompts_within_a_fifth() -> None:
    points = [Point(prompt, rows, prompt or 42 * rows, ms / 1e3, ms / 1e3) for (prompt, rows), ms in RECORDED.items()]
    found = calibrate(MODEL, points, file="f", machine="m")
    assert [str(check.point) for check in found.fitted] == ["1 row", "8 rows", "prompt of 8"]
    assert len(found.held_out) == 7
    assert found.error is not None
    assert found.error < 0.2


def test_rates_of_the_machine_that_the_steps_came_from_are_found() -> None:
    points = [made_up(0, 1, 50), made_up(0, 8, 400), made_up(8, 0, 8), made_up(0, 4, 200), made_up(512, 0, 512)]
    found = calibrate(MODEL, points, file="f", machine="m")
    for name in ("bandwidth", "output_bandwidth", "flops", "step_s", "row_s"):
        assert getattr(found.rates, name) == pytest.approx(getattr(MACHINE, name), rel=1e-6)
    assert len(found.fitted) == 3
    assert found.error == pytest.approx(0, abs=1e-6)


def test_what_was_fitted_does_not_count_as_proof() -> None:
    points = [made_up(0, 1, 50), made_up(0, 8, 400), made_up(8, 0, 8)]
    assert calibrate(MODEL, points, file="f", machine="m").error is None
    slow = msgspec.structs.replace(made_up(0, 4, 200), step_s=2 * made_up(0, 4, 200).step_s)
    assert calibrate(MODEL, [*points, slow], file="f", machine="m").error == pytest.approx(0.5)


def test_log_without_short_prompts_is_solved_from_those_there_are() -> None:
    points = [made_up(0, 1, 50), made_up(0, 8, 400), made_up(120, 0, 120), made_up(300, 0, 300), made_up(0, 2, 90)]
    found = calibrate(MODEL, points, file="f", machine="m")
    assert found.rates.flops == pytest.approx(MACHINE.flops, rel=1e-6)
    assert [check.point.num_decode_tokens for check in found.held_out] == [2]


def test_missing_kinds_of_steps_are_named() -> None:
    with pytest.raises(ConfigError, match="of 8 rows, and of a prompt alone; measured: 1 row, 4 rows"):
        calibrate(MODEL, [made_up(0, 1, 50), made_up(0, 4, 200)], file="f", machine="m")


def test_steps_of_a_shape_become_one_point_and_drafts_none() -> None:
    steps = [
        create_measured_step(0.02, rows=2, context=90, forward_s=0.018),
        create_measured_step(0.04, rows=2, context=94, forward_s=0.03),
        create_measured_step(0.03, rows=2, context=92),
    ]
    drafted = create_measured_step(0.02, rows=1, context=50, num_draft_tokens=4)
    assert points_of([*steps, drafted]) == [Point(0, 2, 92, 0.03, 0.03, 3)]


def test_calibration_comes_back_from_its_file(tmp_path: Path) -> None:
    points = [made_up(0, 1, 50), made_up(0, 8, 400), made_up(8, 0, 8), made_up(0, 16, 700)]
    found = calibrate(MODEL, points, file="f", machine="m")
    found.save(tmp_path / "new" / "calibration.json")
    assert Calibration.load(tmp_path / "new" / "calibration.json") == found
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not hold a calibration"):
        Calibration.load(tmp_path / "bad.json")
