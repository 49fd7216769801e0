from __future__ import annotations

from dataclasses import replace

import pytest

from homeai.evaluation.plan.capacity import Need, Setting, max_cells, max_seqs, need
from homeai.evaluation.plan.gpus import GPUS
from homeai.evaluation.plan.models import MODELS

EIGHT_B = MODELS["8b-q4"]
CARD = GPUS["rtx-4090"]
SETTING = Setting(num_seqs=8, context=4096)


def with_cells(num_cells: int) -> Need:
    return need(EIGHT_B, CARD, replace(SETTING, num_seqs=1, context=num_cells))


def test_need_is_weights_cache_buffers_runtime_and_margin() -> None:
    each = need(EIGHT_B, CARD, SETTING)
    assert each.weights == pytest.approx(EIGHT_B.sizes.weights - EIGHT_B.sizes.embedding, rel=0.001)
    assert each.kv == 8 * 4096 * 131_072
    assert each.margin == pytest.approx(0.05 * 24e9)
    assert each.total + each.free == CARD.memory_bytes
    assert each.fits


def test_most_cells_are_the_last_that_fit() -> None:
    num_cells = max_cells(EIGHT_B, CARD, SETTING)
    assert with_cells(num_cells).fits
    assert not with_cells(num_cells + 256).fits


def test_sequences_share_the_cells() -> None:
    num_cells = max_cells(EIGHT_B, CARD, SETTING)
    assert max_seqs(EIGHT_B, CARD, SETTING, "f16", [1024, 65_536, 10**6]) == [
        num_cells // 1024,
        num_cells // 65_536,
        0,
    ]


def test_quantised_cache_holds_nearly_twice_as_much() -> None:
    f16, q8 = (max_cells(EIGHT_B, CARD, replace(SETTING, kv_type=kv_type)) for kv_type in ("f16", "q8_0"))
    assert 1.8 < q8 / f16 < 1.9


def test_card_that_is_too_small_holds_nothing() -> None:
    assert max_cells(MODELS["70b-q4"], CARD, SETTING) == 0
    assert need(MODELS["70b-q4"], CARD, SETTING).free < -20e9
