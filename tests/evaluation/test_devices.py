from __future__ import annotations

import pytest

from homeai.errors import ConfigError
from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.devices import DEVICES, MODELS, estimate
from homeai.scheduling.plan import KVOp, KVOpKind


def decode_s(device: str, model: str, rows: int = 1, context: int = 0) -> float:
    return estimate(device, model).step_s(StepShape(0, rows, context, context))


def test_every_result_is_called_an_estimate() -> None:
    assert "ESTIMATE" in estimate("rtx-5090", "8b-q4").label


@pytest.mark.parametrize(
    ("device", "low", "high"), [("rtx-5090", 160, 240), ("rtx-4090", 100, 150), ("rtx-3090", 90, 125)]
)
def test_one_stream_is_as_fast_as_published_benchmarks_say(device: str, low: float, high: float) -> None:
    """llama.cpp on these cards with an 8B model at Q4: about 200, 130 and 110 tokens per second."""
    assert low < 1 / decode_s(device, "8b-q4") < high


def test_rows_beside_each_other_cost_little_until_compute_binds() -> None:
    assert decode_s("rtx-4090", "8b-q4", 8) < 1.3 * decode_s("rtx-4090", "8b-q4", 1)
    cost = estimate("rtx-4090", "8b-q4")
    one, two = (cost.step_s(StepShape(n, 0, 0, 0)) for n in (2048, 4096))
    assert two == pytest.approx(2 * one, rel=0.02)


def test_context_costs_bandwidth() -> None:
    extra_s = decode_s("rtx-3090", "8b-q4", 1, 32_000) - decode_s("rtx-3090", "8b-q4", 1, 0)
    assert extra_s == pytest.approx(32_000 * 131_072 / (936e9 * 0.6))


def test_parking_crosses_the_bus() -> None:
    cost = estimate("rtx-4090", "8b-q4")
    assert cost.kv_op_s(KVOp(KVOpKind.SAVE, 0, 1, 1000)) == pytest.approx(1000 * 131_072 / (32e9 * 0.7))
    assert cost.kv_op_s(KVOp(KVOpKind.DROP, 0)) == 0.0


def test_what_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(ConfigError, match=r"19\.8 GB for its weights alone, too much for the 12 GB"):
        estimate("rtx-3060", "32b-q4")


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="known are rtx-5090"):
        estimate("rtx-9999", "8b-q4")
    with pytest.raises(ConfigError, match="known are 3b-q4"):
        estimate("rtx-5090", "900b")


def test_every_card_holds_a_context_beside_the_small_models() -> None:
    for device in DEVICES:
        assert estimate(device, "8b-q4").max_kv_cells > 16_384
    assert MODELS["8b-q4"].kv_bytes_per_token == 131_072
