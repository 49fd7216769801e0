"""What a model's file says of itself, on the default model's."""

from __future__ import annotations

import datetime
import os
import shutil
from pathlib import Path

import pytest

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.card import read_card
from homeai.model_card import ModelCard


def card_of(path: Path) -> ModelCard:
    model = Model(path, vocab_only=True)
    try:
        return read_card(model)
    finally:
        model.close()


@pytest.fixture(scope="module")
def card(model_path: Path) -> ModelCard:
    return card_of(model_path)


def test_card_describes_the_model(card: ModelCard, model_path: Path) -> None:
    assert (card.architecture, card.quantization, card.num_params) == ("gemma3", "Q4_K_M", 268098176)
    assert card.size_bytes == model_path.stat().st_size
    assert card.modified_at.tzinfo is datetime.UTC
    assert card.modified_at.timestamp() == pytest.approx(model_path.stat().st_mtime)


def test_metadata_have_their_types_again(card: ModelCard) -> None:
    assert card.metadata["gemma3.context_length"] == 32768
    assert card.metadata["gemma3.rope.freq_base"] == 1e6
    assert card.metadata["tokenizer.ggml.add_bos_token"] is True
    assert card.metadata["general.name"] == "Gemma 3 270m"
    assert card.metadata["general.file_type"] == 15
    assert "tokenizer.ggml.tokens" not in card.metadata


def test_digest_is_of_the_content_whatever_the_file_is_called(
    card: ModelCard, model_path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "other.gguf"
    shutil.copyfile(model_path, copy)
    assert card_of(copy).digest == card.digest
    assert len(bytes.fromhex(card.digest)) == 32
    with copy.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert card_of(copy).digest != card.digest
