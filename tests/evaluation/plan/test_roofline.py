from __future__ import annotations

import pytest

from homeai.errors import ConfigError
from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.plan.estimate import estimate
from homeai.evaluation.plan.gpus import GPUS
from homeai.evaluation.plan.models import MODELS
from homeai.evaluation.plan.roofline import Rates, RooflineCost, assumed, work_of
from homeai.scheduling.plan import KVOp, KVOpKind


def decode_s(device: str, model: str, rows: int = 1, context: int = 0) -> float:
    return estimate(device, model).step_s(StepShape(0, rows, context, context, context))


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
    one, two = (cost.step_s(StepShape(n, 0, 0, 0, 0)) for n in (2048, 4096))
    assert two == pytest.approx(2 * one, rel=0.02)


def test_context_costs_bandwidth() -> None:
    extra_s = decode_s("rtx-3090", "8b-q4", 1, 32_000) - decode_s("rtx-3090", "8b-q4", 1, 0)
    assert extra_s == pytest.approx(32_000 * 131_072 / (936e9 * 0.6))


def test_layers_with_a_window_read_no_more_than_it() -> None:
    from homeai.evaluation.plan.architecture import Numbers, of_numbers

    numbers = Numbers(
        layers=18, hidden=640, heads=4, kv_heads=1, head_dim=256, ff=2048, vocab=262_144, tied=True,
        window=512, windowed_layers=15,
    )  # fmt: skip
    _, context = work_of(of_numbers(numbers), StepShape(0, 1, 8192, 8192, 8192))
    assert context.read_bytes == pytest.approx(2 * 2 * 256 * (15 * 512 + 3 * 8192))


def test_prompt_sees_half_of_itself() -> None:
    model = MODELS["8b-q4"]
    _, context = work_of(model, StepShape(512, 0, 512, 131_328, 512))
    assert context.flops == pytest.approx(model.attention_flops(512 * 256))


def test_one_row_of_a_sparse_model_reads_its_experts_only_and_many_rows_read_nearly_all() -> None:
    model = MODELS["30b-a3b-q4"]
    assert model.layer_bytes_read(1) < 0.12 * model.layer_bytes
    assert 0.35 < model.layer_bytes_read(8) / model.layer_bytes < 0.55
    assert model.layer_bytes_read(512) > 0.999 * model.layer_bytes
    assert model.layer_flops == pytest.approx(2 * 2.7e9, rel=0.1)  # some 3 B parameters with the vocabulary


def test_where_nothing_overlaps_reading_and_multiplying_add_up() -> None:
    model, card = MODELS["8b-q4"], assumed(GPUS["rtx-4090"])
    rates = Rates(
        bandwidth=card.bandwidth, output_bandwidth=card.bandwidth, flops=card.flops, bus=1.0, step_s=0, row_s=0,
        overlaps=False,
    )  # fmt: skip
    shape = StepShape(0, 8, 0, 0, 0)
    weights, _ = work_of(model, shape)
    added = RooflineCost(model, rates, "", "", 0).step_s(shape)
    assert added == pytest.approx(weights.read_bytes / rates.bandwidth + weights.flops / rates.flops)


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
    for device in GPUS:
        assert estimate(device, "8b-q4").max_kv_cells > 16_384
    assert MODELS["8b-q4"].kv_bytes_per_token == 131_072
