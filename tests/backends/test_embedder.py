"""Vectors of texts: the same as the peers', whatever else was asked for before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from homeai.backends.llamacpp.embedder import CHUNK, Embedder
from homeai.backends.llamacpp.vocab import load_vocabulary
from homeai.vocabulary import Vocabulary

SHORT = "Switch off the light in the kitchen, please."
LONG = "The lighthouse keeper wrote down wind, clouds, waves and the birds that came by. " * 12
TEXTS = ["Hi", SHORT, LONG]
POOLINGS = {"mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN, "last": llama_cpp.LLAMA_POOLING_TYPE_LAST}

CLOSE = {"mean": 0.999, "last": 0.995}  # it computes on weights put in another order, which one token alone shows most


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Iterator[Vocabulary]:
    vocabulary = load_vocabulary(model_path)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module", params=list(POOLINGS))
def embedder(request: pytest.FixtureRequest, model_path: Path) -> Iterator[Embedder]:
    embedder = Embedder(model_path, pooling=request.param, max_tokens=512, num_threads=1)
    yield embedder
    embedder.close()


def test_vectors_are_those_of_llama_cpp(embedder: Embedder, vocabulary: Vocabulary, model_path: Path) -> None:
    reference = llama_cpp.Llama(
        str(model_path),
        embedding=True,
        pooling_type=POOLINGS[embedder.pooling],
        flash_attn=True,  # without it a vector of two tokens lies 0.0015 off
        n_ctx=512,
        n_batch=512,
        n_ubatch=512,
        n_threads=1,
        verbose=False,
    )
    for text in TEXTS:
        token_ids = vocabulary.encode_input(text)
        assert token_ids == reference.tokenize(text.encode(), add_bos=True, special=False)
        expected = np.asarray(reference.embed(text, normalize=True))
        assert embedder.embed(token_ids) @ expected > CLOSE[embedder.pooling]
    reference.close()


def test_a_vector_has_length_one(embedder: Embedder, vocabulary: Vocabulary) -> None:
    for text in TEXTS:
        vector = embedder.embed(vocabulary.encode_input(text))
        assert (vector.dtype, vector.shape) == (np.dtype("float32"), (embedder.num_dims,))
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_a_vector_does_not_depend_on_what_was_asked_before(embedder: Embedder, vocabulary: Vocabulary) -> None:
    token_ids = vocabulary.encode_input(SHORT)
    alone = embedder.embed(token_ids)
    embedder.embed(vocabulary.encode_input(LONG))
    assert np.array_equal(embedder.embed(token_ids), alone)


def test_long_texts_are_read_in_several_chunks(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.encode_input(LONG)) > 2 * CHUNK


def test_pooling_is_mean_where_the_file_says_nothing(model_path: Path) -> None:
    embedder = Embedder(model_path, pooling="auto", max_tokens=64, num_threads=1)
    assert embedder.pooling == "mean"
    embedder.close()
