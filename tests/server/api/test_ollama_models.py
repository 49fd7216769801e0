"""The model in Ollama's words: what clients find out from capabilities and the template."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from homeai.messages import EngineReady
from homeai.server.api.ollama_models import capabilities, parameter_size, running, show, tags
from homeai.server.text import Text

CARD = SimpleNamespace(
    file_format="gguf",
    architecture="qwen3",
    quantization="Q4_K_M",
    num_params=7_600_000_000,
    size_bytes=5_000_000_000,
    modified_at=datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    digest="ab" * 32,
    metadata={"general.architecture": "qwen3", "qwen3.context_length": 40960},
)


def text(**traits: object) -> Text:
    defaults = {"name": "qwen", "card": CARD, "max_model_len": 8192}
    return cast(
        Text, SimpleNamespace(**defaults | {"fills_gaps": False, "can_think": False, "default_stop": ()} | traits)
    )


def ready(device: str) -> EngineReady:
    return EngineReady(num_kv_cells=1, max_model_len=1, device=device, model_bytes=100, kv_bytes=20, load_s=0.5)


def test_nothing_is_listed_before_the_file_is_read() -> None:
    assert tags(None) == running(None, ready("cpu")) == {"models": []}


def test_model_that_loads_is_listed_and_does_not_run() -> None:
    assert [model["name"] for model in cast(Any, tags(text()))["models"]] == ["qwen"]
    assert running(text(), None) == {"models": []}


@pytest.mark.parametrize(("device", "size_vram"), [("cpu", 0), ("cuda", 120)])
def test_running_model_says_where_its_memory_is(device: str, size_vram: int) -> None:
    (model,) = cast(Any, running(text(), ready(device)))["models"]
    assert (model["size"], model["size_vram"], model["context_length"]) == (120, size_vram, 8192)


def test_details_are_written_as_ollama_does() -> None:
    (model,) = cast(Any, tags(text()))["models"]
    assert model["modified_at"] == "2026-01-02T03:04:05.000000Z"
    assert model["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "qwen3",
        "families": ["qwen3"],
        "parameter_size": "7.6B",
        "quantization_level": "Q4_K_M",
    }


@pytest.mark.parametrize(
    ("num_params", "size"),
    [(268_098_176, "268.10M"), (8_190_000_000, "8.2B"), (1_040_000_000_000, "1.0T"), (4_400, "4.4K"), (12, "12")],
)
def test_sizes_are_short(num_params: int, size: str) -> None:
    assert parameter_size(num_params) == size


@pytest.mark.parametrize("fills_gaps", [False, True])
def test_template_shows_a_suffix_if_the_model_fills_gaps(fills_gaps: bool) -> None:
    """Continue sends gaps only then; Open WebUI and Zed look at the capabilities."""
    shown = cast(Any, show(text(fills_gaps=fills_gaps)))
    assert ("{{ .Suffix }}" in shown["template"]) is fills_gaps
    assert ("insert" in shown["capabilities"]) is fills_gaps
    assert ".Tools" in shown["template"]
    assert shown["template"].count("{{ if") == shown["template"].count("{{ end }}")


def test_model_that_thinks_says_so() -> None:
    assert capabilities(text(can_think=True)) == ["completion", "tools", "thinking"]
    assert capabilities(text()) == ["completion", "tools"]


def test_metadata_and_the_served_context_are_both_told() -> None:
    shown = cast(Any, show(text(default_stop=("\nUser:",))))
    assert shown["model_info"]["qwen3.context_length"] == 40960
    assert shown["model_info"]["general.parameter_count"] == 7_600_000_000
    assert [line.split() for line in shown["parameters"].splitlines()] == [["num_ctx", "8192"], ["stop", '"\\nUser:"']]
