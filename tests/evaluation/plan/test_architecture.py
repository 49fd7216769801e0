from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homeai.errors import ConfigError
from homeai.evaluation.plan.architecture import Architecture, Numbers, Window, of_numbers
from homeai.evaluation.plan.architecture_file import of_file
from homeai.evaluation.plan.models import MODELS

EIGHT_B = Numbers(layers=32, hidden=4096, heads=32, kv_heads=8, ff=14_336, vocab=128_256)
SMALL = Numbers(
    layers=18, hidden=640, heads=4, kv_heads=1, head_dim=256, ff=2048, vocab=262_144, tied=True, window=512,
    windowed_layers=15, bytes_per_weight=0.92, context=32_768,
)  # fmt: skip


@pytest.fixture(scope="module")
def of_the_file(model_path: Path) -> Architecture:
    return of_file(model_path)


def test_numbers_of_a_model_card_give_its_parameters_and_its_cache() -> None:
    model = of_numbers(EIGHT_B)
    assert model.num_parameters == pytest.approx(8.03e9, rel=0.001)
    assert model.sizes.weights == pytest.approx(2 * model.num_parameters, rel=1e-6)
    assert model.kv_bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("name", "billions"), [("3b-q4", 3.2), ("14b-q4", 14.8), ("30b-a3b-q4", 30.5), ("32b-q4", 32.8), ("70b-q4", 70.6)]
)
def test_published_models_have_the_parameters_that_they_are_named_after(name: str, billions: float) -> None:
    assert MODELS[name].num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_given_parameters_tell_how_wide_the_feed_forward_part_is() -> None:
    model = of_numbers(replace(EIGHT_B, ff=None, parameters=8.03e9))
    assert model.sizes.num_ff == pytest.approx(14_336, rel=0.001)


def test_file_and_card_of_the_same_model_agree(of_the_file: Architecture) -> None:
    card = of_numbers(SMALL)
    assert card.num_parameters == pytest.approx(of_the_file.num_parameters, rel=0.001)
    assert card.layer_parameters == pytest.approx(of_the_file.layer_parameters, rel=0.001)
    assert card.attention_width == of_the_file.attention_width == 1024
    assert card.kv_bytes_per_token == of_the_file.kv_bytes_per_token
    assert card.sizes.n_ctx_train == of_the_file.sizes.n_ctx_train


def test_file_tells_how_many_of_its_layers_have_a_window(of_the_file: Architecture) -> None:
    assert of_the_file.window == Window(num_tokens=512, num_layers=15)


def test_without_full_windows_their_layers_keep_the_window_and_a_step() -> None:
    model = of_numbers(SMALL)
    full = model.kv_bytes(8192, 1, 256, "f16", swa_full=True)
    cut = model.kv_bytes(8192, 1, 256, "f16", swa_full=False)
    assert full == 8192 * model.kv_bytes_per_token
    assert cut == pytest.approx(full * (3 + 15 * 768 / 8192) / 18)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ff": None}, "--parameters or --ff"),
        ({"ff": None, "parameters": 1e9}, r"--parameters 1e\+09: the vocabulary .* alone have more"),
        ({"hidden": 4097}, "--heads 32: does not divide --hidden 4097"),
        ({"kv_heads": 5}, "--kv-heads 5: does not divide --heads 32"),
        ({"experts": 8}, "both or neither"),
        ({"experts": 4, "experts_used": 8}, "--experts-used 8: there are --experts 4"),
        ({"windowed_layers": 3}, "--windowed-layers 3: of --layers 32, with --window None"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of_numbers(replace(EIGHT_B, **changes))  # type: ignore[arg-type]
