"""Vectors from a folder of safetensors: those of llama.cpp and of transformers, whatever else was asked for before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from homeai.backends.llamacpp.embedder import Embedder as OfFile
from homeai.backends.torch.embedder import POOLED, Embedder
from homeai.backends.torch.vocab import load_vocabulary
from homeai.embedding.embedder import load_embedder
from homeai.embedding.messages import LoadEmbedder
from homeai.errors import ModelLoadError
from homeai.vocabulary import Vocabulary
from tests.backends.torch.factories import SIZES, model_of, text

TEXTS = [
    "Hi",
    "Switch off the light in the kitchen, please.",
    "Im Jahr 1903 gelang der erste gesteuerte Flug; er dauerte zwölf Sekunden.",
    "The lighthouse keeper wrote down wind, clouds, waves and the birds that came by. " * 12,
]
CLOSE = 0.99
MAX_TOKENS = 512


def create_embedder(path: Path, pooling: str = "auto") -> Embedder:
    return Embedder(path, pooling=pooling, max_tokens=MAX_TOKENS, num_threads=1)


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_of("gemma3", model_folder), tmp_path / "Parrot-1B"))


def says_pooling(folder: Path, **modes: bool) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, **modes}))


# ---- the default model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabulary(torch_path: Path) -> Iterator[Vocabulary]:
    vocabulary = load_vocabulary(torch_path)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module", params=["mean", "last"])
def embedder(request: pytest.FixtureRequest, torch_path: Path) -> Iterator[Embedder]:
    embedder = create_embedder(torch_path, request.param)
    yield embedder
    embedder.close()


def test_vectors_are_those_of_llama_cpp(embedder: Embedder, vocabulary: Vocabulary, gguf_path: Path) -> None:
    reference = OfFile(gguf_path, pooling=embedder.pooling, max_tokens=MAX_TOKENS, num_threads=1)
    assert embedder.num_dims == reference.num_dims
    for one in TEXTS:
        token_ids = vocabulary.encode_input(one)
        assert embedder.embed(token_ids) @ reference.embed(token_ids) > CLOSE, one
    reference.close()


def test_a_vector_has_length_one(embedder: Embedder, vocabulary: Vocabulary) -> None:
    for one in TEXTS:
        vector = embedder.embed(vocabulary.encode_input(one))
        assert (vector.dtype, vector.shape) == (np.dtype("float32"), (embedder.num_dims,))
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_a_vector_does_not_depend_on_what_was_asked_before(embedder: Embedder, vocabulary: Vocabulary) -> None:
    short, long = map(vocabulary.encode_input, TEXTS[-2:])
    alone = embedder.embed(short)
    embedder.embed(long)
    assert np.array_equal(embedder.embed(short), alone)


# ---- pooling ---------------------------------------------------------------------------------------------


def test_pooling_is_mean_where_the_folder_says_nothing(folder: Path) -> None:
    assert create_embedder(folder).pooling == "mean"


@pytest.mark.parametrize(
    ("mode", "pooling", "in_gguf"),
    [
        ("pooling_mode_mean_tokens", "mean", 1),
        ("pooling_mode_cls_token", "cls", 2),
        ("pooling_mode_lasttoken", "last", 3),
    ],
)
def test_pooling_is_what_sentence_transformers_wrote(folder: Path, mode: str, pooling: str, in_gguf: int) -> None:
    others = dict.fromkeys(("pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_max_tokens"), False)
    says_pooling(folder, **others | {mode: True})
    assert create_embedder(folder).pooling == pooling
    assert load_vocabulary(folder).card.metadata["gemma3_text.pooling_type"] == in_gguf


@pytest.mark.parametrize("pooling", POOLED)
def test_vectors_are_pooled_rows_of_transformers(folder: Path, pooling: str) -> None:
    token_ids = text(60)
    with torch.inference_mode():
        rows = AutoModel.from_pretrained(folder)(torch.tensor([token_ids])).last_hidden_state[0].numpy()
    expected = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
    vector = create_embedder(folder, pooling).embed(token_ids)
    assert np.allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)


def test_a_model_that_looks_both_ways_makes_vectors_too(tmp_path: Path) -> None:
    sizes = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    BertModel(BertConfig(**sizes, intermediate_size=64)).save_pretrained(tmp_path)
    embedder = create_embedder(tmp_path, "cls")
    one, other = embedder.embed([5, 6, 7]), embedder.embed([5, 6, 8])
    assert one.shape == (48,)
    assert not np.allclose(one, other), "the first token sees the last one"


# ---- what cannot be --------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [["pooling_mode_max_tokens"], ["pooling_mode_cls_token", "pooling_mode_mean_tokens"]])
def test_another_pooling_is_said_with_what_there_is(folder: Path, modes: list[str]) -> None:
    says_pooling(folder, **dict.fromkeys(modes, True))
    with pytest.raises(ModelLoadError, match=rf"Parrot-1B has {' and '.join(modes)}, .* can be mean, cls, last"):
        create_embedder(folder)
    assert create_embedder(folder, "mean").pooling == "mean"


def test_vectors_that_would_lack_a_layer_are_refused(folder: Path) -> None:
    (folder / "2_Dense").mkdir()
    with pytest.raises(ModelLoadError, match="Parrot-1B has layers behind its pooling"):
        create_embedder(folder)


def test_a_folder_that_is_not_complete_is_one_line(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is cut off") as error:
        create_embedder(folder)
    assert "\n" not in str(error.value)


def test_backend_is_the_one_that_the_path_is_for(folder: Path, gguf_path: Path) -> None:
    for path, kind in ((folder, Embedder), (gguf_path, OfFile)):
        load = LoadEmbedder(model_path=str(path), pooling="auto", max_tokens=64, num_threads=1)
        embedder = load_embedder(load)
        assert type(embedder) is kind
        embedder.close()
