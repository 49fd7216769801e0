"""Texts → vectors, for all API families: checked and tokenised here, computed in a child process of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from homeai.backends.choice import load_vocabulary, model_name
from homeai.config import Config, EmbeddingsConfig
from homeai.embedding.messages import LoadEmbedder
from homeai.errors import InvalidRequest, ModelLoadError, ModelNotFound, NotReady, PromptTooLong
from homeai.server.child import engine_environment
from homeai.server.embedding_child import RETRY_AFTER_S, EmbeddingChild
from homeai.server.embedding_queue import Child, EmbeddingQueue, StartChild
from homeai.server.text import Text
from homeai.vocabulary import Vocabulary

MAX_INPUTS: Final = 2048  # OpenAI's
OWN_POOLINGS: Final = {1: "mean", 2: "cls", 3: "last"}  # as a GGUF says it

Input = str | list[int]


class Embedded(NamedTuple):
    """One vector for each input: float32, little-endian, of length 1. `notes` are for the client."""

    model: str
    vectors: list[bytes]
    num_tokens: int
    notes: list[str]

    @property
    def floats(self) -> list[list[float]]:
        """The vectors as JSON writes them."""
        return [np.frombuffer(vector, np.float32).tolist() for vector in self.vectors]


class Embeddings:
    """One per daemon."""

    def __init__(self, config: EmbeddingsConfig, resident: Path, start_child: StartChild) -> None:
        """`resident` is the file or folder that chats run on: without a model of their own, embeddings come from it."""
        self._config = config
        self._path = config.model or resident
        self._is_resident = config.model is None
        self._own_vocabulary: asyncio.Future[Vocabulary] | None = None
        self.queue = EmbeddingQueue(start_child, max_waiting=config.max_waiting, idle_timeout_s=config.idle_timeout_s)

    @classmethod
    def of(cls, config: Config, resident: Path) -> Embeddings:
        """As the settings want it."""
        server = config.server

        async def start(load: LoadEmbedder) -> Child:
            environment = engine_environment(os.environ, "cpu")
            return await EmbeddingChild.start(
                load, environment, log_level=server.log_level, log_format=server.log_format
            )

        return cls(config.embeddings, resident, start)

    def name(self, text: Text) -> str:
        """What the model is called that makes them; `text` is the resident model's."""
        return text.name if self._is_resident else self._config.name or model_name(self._path)

    async def embed(
        self,
        text: Text,
        inputs: Sequence[Input],
        *,
        model: str | None = None,
        dimensions: int | None = None,
        max_tokens: int | None = None,
    ) -> Embedded:
        """The vectors of `inputs`, in their order.

        `dimensions` keeps so many of each vector's first numbers; `max_tokens` is the client's own limit for each
        input. Raises `InvalidRequest`, `PromptTooLong`, `ModelNotFound`, `TooManyRequests` before anything is
        computed; `NotReady` when the child cannot.
        """
        name = self.name(text)
        if not (text.knows(model) or model == name):
            raise ModelNotFound(f"model {model!r} does not exist; embeddings come from {name!r}", param="model")
        if not inputs:
            raise InvalidRequest("input is empty: at least one text is needed", param="input")
        if len(inputs) > MAX_INPUTS:
            raise InvalidRequest(f"input has too many texts: {len(inputs)} > {MAX_INPUTS} maximum", param="input")
        vocabulary = await self._vocabulary(text)
        num_dims = _num_dims(vocabulary)
        if dimensions is not None and not 1 <= dimensions <= num_dims:
            raise InvalidRequest(
                f"dimensions is {dimensions}; the vectors of {name!r} have 1 to {num_dims}", param="dimensions"
            )
        size, longest = sum(map(len, inputs)), self._max_tokens(vocabulary)
        encode = partial(self._encode, vocabulary, longest if max_tokens is None else min(longest, max_tokens))
        token_ids = await text.run(size, lambda: [encode(index, one) for index, one in enumerate(inputs)])
        vectors = await self.queue.compute(token_ids, self._load(vocabulary))
        if dimensions is not None and dimensions < num_dims:
            vectors = [_shortened(vector, dimensions) for vector in vectors]
        return Embedded(name, vectors, sum(map(len, token_ids)), self._notes(name, vocabulary))

    def follow(self, resident: Path) -> None:
        """Chats run on another file now: without a model of their own, embeddings come from it too."""
        if self._is_resident:
            self._path = resident

    async def close(self) -> None:
        await self.queue.close()

    async def _vocabulary(self, text: Text) -> Vocabulary:
        """The resident model's, or the other one's: read once, by whoever comes first; half a second."""
        if self._is_resident:
            return text.vocabulary
        if self._own_vocabulary is None:
            self._own_vocabulary = asyncio.ensure_future(asyncio.to_thread(load_vocabulary, self._path))
        try:
            return await asyncio.shield(self._own_vocabulary)
        except ModelLoadError as error:
            self._own_vocabulary = None  # the file may be put right
            raise NotReady(f"embeddings are not available: {error}", retry_after_s=RETRY_AFTER_S) from None

    def _encode(self, vocabulary: Vocabulary, longest: int, index: int, text: Input) -> list[int]:
        """Raises `InvalidRequest`, `PromptTooLong`."""
        param = f"input[{index}]"
        if isinstance(text, str):
            if (fewest := vocabulary.min_tokens(text)) > longest:
                raise PromptTooLong(fewest, longest, at_least=True, param=param)
            token_ids = vocabulary.encode_input(text)
        else:
            token_ids = text
        if not token_ids:
            raise InvalidRequest(f"{param} is empty: at least one token is needed", param=param)
        if len(token_ids) > longest:
            raise PromptTooLong(len(token_ids), longest, param=param)
        for token_id in token_ids:
            if not 0 <= token_id < vocabulary.num_tokens:
                raise InvalidRequest(
                    f"{param} has token {token_id}; the vocabulary is 0 to {vocabulary.num_tokens - 1}", param=param
                )
        return token_ids

    def _load(self, vocabulary: Vocabulary) -> LoadEmbedder:
        return LoadEmbedder(
            model_path=str(self._path),
            pooling=self._config.pooling,
            max_tokens=self._max_tokens(vocabulary),
            num_threads=self._config.num_threads,
        )

    def _max_tokens(self, vocabulary: Vocabulary) -> int:
        return min(self._config.max_tokens, vocabulary.n_ctx_train or self._config.max_tokens)

    def _notes(self, name: str, vocabulary: Vocabulary) -> list[str]:
        if not self._is_resident:
            return []
        pooling = self._config.pooling if self._config.pooling != "auto" else _own_pooling(vocabulary)
        return [f"embeddings.model is not set: these come from {name}, pooling {pooling}"]


def _num_dims(vocabulary: Vocabulary) -> int:
    """Of the model's vectors, as its file says."""
    card = vocabulary.card
    for key in ("embedding_length_out", "embedding_length"):
        if isinstance(num_dims := card.metadata.get(f"{card.architecture}.{key}"), int):
            return num_dims
    raise NotReady("embeddings are not available: the model's file does not say how long its vectors are")


def _own_pooling(vocabulary: Vocabulary) -> str:
    stated = vocabulary.card.metadata.get(f"{vocabulary.card.architecture}.pooling_type")
    return OWN_POOLINGS.get(stated, "mean") if isinstance(stated, int) else "mean"


def _shortened(vector: bytes, num_dims: int) -> bytes:
    """The first numbers of a vector, again of length 1."""
    short = np.frombuffer(vector, np.float32)[:num_dims]
    return (short / (np.linalg.norm(short) or np.float32(1))).astype(np.float32).tobytes()
