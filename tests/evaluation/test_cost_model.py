from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from homeai.errors import ConfigError
from homeai.evaluation.cost_model import FitError, MeasuredCost, StepShape
from homeai.scheduling.plan import Chunk, KVOp, KVOpKind, StepPlan
from tests.evaluation.factories import COST


def shape(*, prefill: int = 0, decode: int = 0, cells: int = 0) -> StepShape:
    return StepShape(prefill, decode, cells, 0, cells)


def test_shape_counts_drafts_as_rows_and_context_of_everybody_in_the_step() -> None:
    plan = StepPlan(num_decode_tokens=1, num_prefill_tokens=20)
    plan.chunks = [Chunk("a", 0, 100, 1, 1, num_drafts=3), Chunk("b", 1, 30, 20, 0)]
    assert StepShape.of(plan, kv_used=900) == StepShape(20, 4, 151, (attended := 101 + 20 * 30 + 210), 900, 1, attended)


@pytest.mark.parametrize(("rows", "seconds"), [(1, 0.0187), (2, 0.026), (3, 0.0285), (4, 0.031), (8, 0.047)])
def test_decode_time_lies_on_the_measured_points_and_the_lines_between(rows: int, seconds: float) -> None:
    assert COST.step_s(shape(decode=rows)) == pytest.approx(seconds)


def test_beyond_the_last_point_time_grows_as_it_did() -> None:
    assert COST.step_s(shape(decode=24)) == pytest.approx(0.083 + 0.083 - 0.047)


def test_one_point_is_enough() -> None:
    cost = msgspec.structs.replace(COST, decode_s=[(4, 0.03)])
    assert cost.step_s(shape(decode=9)) == pytest.approx(0.03)


def test_step_that_draws_nothing_does_not_pay_for_the_output_matrix() -> None:
    cost = msgspec.structs.replace(COST, mixed_output_s=0.011)
    ends, goes_on = (cost.step_s(shape(prefill=64)._replace(num_outputs=count)) for count in (1, 0))
    assert ends - goes_on == pytest.approx(0.011)


def test_foreign_cells_make_every_row_slower() -> None:
    """15,000 of them made 8 rows go from 47 to 69 ms."""
    assert COST.step_s(shape(decode=8, cells=15_000)) == pytest.approx(0.069)


def test_prefill_runs_at_the_measured_speed() -> None:
    assert 500 < 256 / COST.step_s(shape(prefill=256, cells=256)) < 560


def test_only_copies_to_and_from_the_host_take_time() -> None:
    assert COST.kv_op_s(KVOp(KVOpKind.SAVE, 0, 1, 815)) == pytest.approx(0.033)
    assert COST.kv_op_s(KVOp(KVOpKind.RESTORE, 0, 1, 815)) == pytest.approx(0.0016)
    assert {COST.kv_op_s(KVOp(kind, 0, 1, 815)) for kind in (KVOpKind.DROP, KVOpKind.SHARE)} == {0.0}


def test_model_comes_back_from_its_file_with_its_error(tmp_path: Path) -> None:
    cost = msgspec.structs.replace(COST, error=FitError(100, 0.01, 0.05, 0.2))
    cost.save(tmp_path / "cost.json")
    assert MeasuredCost.load(tmp_path / "cost.json") == cost


def test_label_states_the_error_of_the_fit() -> None:
    cost = msgspec.structs.replace(COST, source="here", error=FitError(100, -0.013, 0.05, 0.2))
    assert cost.label == "here (measured: 100 steps, off by 5% at the median and 20% at p95, -1.3% in total)"


@pytest.mark.parametrize("text", [None, "{}", "nonsense"])
def test_file_without_a_model_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "cost.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="does not hold a fitted cost model"):
        MeasuredCost.load(path)
