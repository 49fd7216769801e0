"""Texts → vectors, for all API families: checked and tokenised here, computed in a child process of its own.

The child is started by the first request and ended when nobody asked for a while. One input is computed at a time;
requests take turns, so that one with a thousand inputs does not keep a single one waiting for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from homeai.backends.llamacpp.vocab import Vocabulary
from homeai.config import Config, EmbeddingsConfig
from homeai.embedding.messages import LoadEmbedder
from homeai.errors import (
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    NotReady,
    PromptTooLong,
    RequestError,
    TooManyRequests,
)
from homeai.server.child import engine_environment
from homeai.server.embedding_child import RETRY_AFTER_S, EmbeddingChild
from homeai.server.text import Text

log = logging.getLogger("homeai")

MAX_INPUTS: Final = 2048  # OpenAI's
BUSY_RETRY_AFTER_S: Final = 2.0

OWN_POOLINGS: Final = {1: "mean", 2: "cls", 3: "last"}  # as a GGUF says it

Input = str | list[int]


class Child(Protocol):
    """A process that makes one vector at a time. Raises `NotReady` when it cannot, and is closed then."""

    @property
    def pid(self) -> int: ...

    async def embed(self, token_ids: list[int]) -> bytes: ...

    async def close(self) -> None: ...


StartChild = Callable[[LoadEmbedder], Awaitable[Child]]


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


@dataclass(eq=False, slots=True)
class _Job:
    """One request's inputs, computed from the first to the last."""

    inputs: list[list[int]]
    done: asyncio.Future[list[bytes]]
    vectors: list[bytes] = field(default_factory=list)


class Embeddings:
    """One per daemon. Runs on the event loop; the one task that talks to the child is `_work`."""

    def __init__(self, config: EmbeddingsConfig, resident: Path, start_child: StartChild) -> None:
        """`resident` is the file that chats run on: without a model of their own, embeddings come from it."""
        self._config = config
        self._path = config.model or resident
        self._is_resident = config.model is None
        self._start_child = start_child
        self._vocabulary: asyncio.Future[Vocabulary] | None = None
        self._jobs: deque[_Job] = deque()
        self._news = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._child: Child | None = None

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
        return text.name if self._is_resident else self._config.name or self._path.stem

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def embed(
        self, text: Text, inputs: Sequence[Input], *, model: str | None = None, dimensions: int | None = None
    ) -> Embedded:
        """The vectors of `inputs`, in their order; `text` is the resident model's.

        `dimensions` keeps so many of each vector's first numbers. Raises `InvalidRequest`, `PromptTooLong`,
        `ModelNotFound`, `TooManyRequests` before anything is computed; `NotReady` when the child cannot.
        """
        name = self.name(text)
        if not (text.knows(model) or model == name):
            raise ModelNotFound(f"model {model!r} does not exist; embeddings come from {name!r}", param="model")
        if not inputs:
            raise InvalidRequest("input is empty: at least one text is needed", param="input")
        if len(inputs) > MAX_INPUTS:
            raise InvalidRequest(f"input has too many texts: {len(inputs)} > {MAX_INPUTS} maximum", param="input")
        vocabulary = await self._load_vocabulary()
        num_dims = _num_dims(vocabulary)
        if dimensions is not None and not 1 <= dimensions <= num_dims:
            raise InvalidRequest(
                f"dimensions is {dimensions}; the vectors of {name!r} have 1 to {num_dims}", param="dimensions"
            )
        size = sum(map(len, inputs))
        token_ids = await text.run(size, lambda: [self._encode(vocabulary, i, one) for i, one in enumerate(inputs)])
        vectors = await self._compute(token_ids)
        if dimensions is not None and dimensions < num_dims:
            vectors = [_shortened(vector, dimensions) for vector in vectors]
        return Embedded(name, vectors, sum(map(len, token_ids)), self._notes(name, vocabulary))

    def _notes(self, name: str, vocabulary: Vocabulary) -> list[str]:
        if not self._is_resident:
            return []
        pooling = self._config.pooling if self._config.pooling != "auto" else _own_pooling(vocabulary)
        return [f"embeddings.model is not set: these come from {name}, pooling {pooling}"]

    # ---- checked and tokenised -----------------------------------------------------------------------

    async def _load_vocabulary(self) -> Vocabulary:
        """Read once, by whoever comes first; half a second."""
        if self._vocabulary is None:
            self._vocabulary = asyncio.ensure_future(asyncio.to_thread(Vocabulary.load, self._path))
        try:
            return await asyncio.shield(self._vocabulary)
        except ModelLoadError as error:
            self._vocabulary = None  # the file may be put right
            raise NotReady(f"embeddings are not available: {error}", retry_after_s=RETRY_AFTER_S) from None

    def _max_tokens(self, vocabulary: Vocabulary) -> int:
        return min(self._config.max_tokens, vocabulary.n_ctx_train or self._config.max_tokens)

    def _encode(self, vocabulary: Vocabulary, index: int, text: Input) -> list[int]:
        """Raises `InvalidRequest`, `PromptTooLong`."""
        param, longest = f"input[{index}]", self._max_tokens(vocabulary)
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

    # ---- computed ------------------------------------------------------------------------------------

    async def _compute(self, token_ids: list[list[int]]) -> list[bytes]:
        limit = self._config.max_waiting
        if len(self._jobs) >= limit:
            raise TooManyRequests(
                f"{len(self._jobs)} requests wait for embeddings, {limit} maximum", retry_after_s=BUSY_RETRY_AFTER_S
            )
        job = _Job(token_ids, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._news.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await job.done
        finally:
            if job in self._jobs:  # its client left
                self._jobs.remove(job)

    async def _work(self) -> None:
        """Until nobody asks for a while: an input of each request in turn."""
        try:
            while self._jobs or await self._comes_news():
                await self._turn(self._jobs.popleft())
        finally:
            await self._end_child()

    async def _comes_news(self) -> bool:
        """False when nobody came for long, and the child is ended."""
        self._news.clear()
        try:
            async with asyncio.timeout(self._config.idle_timeout_s):
                await self._news.wait()
        except TimeoutError:
            log.info("embeddings: nobody asked for %.0f s, the process ends", self._config.idle_timeout_s)
            await self._end_child()
        return bool(self._jobs)

    async def _turn(self, job: _Job) -> None:
        """The next input of a request; it goes behind the others then."""
        try:
            job.vectors.append(await self._vector(job.inputs[len(job.vectors)]))
        except NotReady as error:
            log.warning("%s", error.message)
            _fail(job, error)
        except Exception:
            log.exception("embeddings are broken; their process starts again")
            await self._end_child()
            _fail(job, RequestError("the embeddings could not be computed"))
        if job.done.done():  # failed, or its client left
            return
        if len(job.vectors) == len(job.inputs):
            job.done.set_result(job.vectors)
        else:
            self._jobs.append(job)

    async def _vector(self, token_ids: list[int]) -> bytes:
        try:
            if self._child is None:
                self._child = await self._start_child(await self._load_message())
            return await self._child.embed(token_ids)
        except NotReady:
            await self._end_child()
            raise

    async def _load_message(self) -> LoadEmbedder:
        vocabulary = await self._load_vocabulary()
        return LoadEmbedder(
            model_path=str(self._path),
            pooling=self._config.pooling,
            max_tokens=self._max_tokens(vocabulary),
            num_threads=self._config.num_threads,
        )

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def close(self) -> None:
        """Nobody is answered any more; the child ends."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        for job in self._jobs:
            job.done.cancel()


def _fail(job: _Job, error: RequestError) -> None:
    if not job.done.done():
        job.done.set_exception(error)


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
