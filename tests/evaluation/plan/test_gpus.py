from __future__ import annotations

import pytest

from homeai.errors import ConfigError
from homeai.evaluation.plan.gpus import GPUS, find

WANTED = [
    *("rtx-5090", "rtx-5080", "rtx-4090", "rtx-4080", "rtx-3090", "l40s"),
    *("a100-80gb", "h100-sxm", "h200", "b200", "b300"),
]


@pytest.mark.parametrize("name", WANTED)
def test_every_card_names_the_document_that_its_figures_are_from(name: str) -> None:
    assert "NVIDIA" in GPUS[name].source


@pytest.mark.parametrize("name", GPUS)
def test_figures_are_of_one_order(name: str) -> None:
    """A card's memory can be read in 5 … 60 ms, and it multiplies 70 … 500 times for each byte it reads."""
    gpu = GPUS[name]
    assert 0.005 < gpu.memory_bytes / gpu.bandwidth < 0.06
    assert 70 < gpu.fp16 / gpu.bandwidth < 500
    assert gpu.fp8 is None or gpu.fp8 == pytest.approx(2 * gpu.fp16, rel=0.02)
    assert 100 < gpu.watts < 1500


def test_cards_without_fp8_say_so() -> None:
    assert [name for name, gpu in GPUS.items() if gpu.fp8 is None] == ["rtx-3090", "rtx-3060", "a100-80gb"]


def test_name_may_be_written_as_people_do() -> None:
    assert find("RTX 5090") is GPUS["rtx-5090"]
    with pytest.raises(ConfigError, match="--gpu voodoo-2: known are rtx-5090"):
        find("voodoo-2")
