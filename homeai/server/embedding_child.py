"""The embedding child as an operating-system process: started by exec, joined by one socket, ended for sure."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from homeai.embedding.messages import (
    Down,
    Embed,
    Embedded,
    EmbedderFailed,
    EmbedderReady,
    LoadEmbedder,
    Up,
    encode_frame,
    up_decoder,
)
from homeai.errors import NotReady
from homeai.messages import HEADER
from homeai.server.child import KILL_AFTER_S

RETRY_AFTER_S = 5.0
LOAD_TIMEOUT_S = 300.0  # from a slow disk
EMBED_TIMEOUT_S = 300.0  # for one text, on a slow processor


class EmbeddingChild:
    """One incarnation, asked for one text at a time. Whatever goes wrong with it is a `NotReady`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        embed_timeout_s: float = EMBED_TIMEOUT_S,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._embed_timeout_s = embed_timeout_s

    @classmethod
    async def start(
        cls,
        load: LoadEmbedder,
        environment: Mapping[str, str],
        *,
        log_level: str,
        log_format: str,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        embed_timeout_s: float = EMBED_TIMEOUT_S,
    ) -> Self:
        """Loaded, and ready for texts. Raises `NotReady` with the reason."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "homeai.embedding.process", "--fd", str(theirs.fileno())),
                *("--log-level", log_level, "--log-format", log_format),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env=dict(environment),
            )
        child = cls(process, *await asyncio.open_connection(sock=ours), embed_timeout_s)
        try:
            ready = await child._ask(load, load_timeout_s)
            assert isinstance(ready, EmbedderReady), "it says first that it is ready"
        except BaseException:
            await child.close()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def embed(self, token_ids: list[int]) -> bytes:
        """float32 [num_dims]. Raises `NotReady` when the process ended over it, or hangs."""
        answer = await self._ask(Embed(token_ids), self._embed_timeout_s)
        assert isinstance(answer, Embedded), "one answer for each text"
        return answer.vector

    async def close(self) -> None:
        """End the process, by its socket or else for sure, and reap it."""
        self._writer.close()
        try:
            async with asyncio.timeout(KILL_AFTER_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _ask(self, message: Down, timeout_s: float) -> Up:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer(message)
        except TimeoutError:
            raise NotReady(
                f"the embedding process does not answer within {timeout_s:g} s; it starts again with the next request",
                retry_after_s=RETRY_AFTER_S,
            ) from None

    async def _answer(self, message: Down) -> Up:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            self._writer.write(encode_frame(message))
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            answer = up_decoder.decode(await self._reader.readexactly(length))
            if not isinstance(answer, EmbedderFailed):
                return answer
            raise NotReady(f"embeddings are not available: {answer.message}", retry_after_s=RETRY_AFTER_S)
        raise NotReady(
            "the embedding process ended; it starts again with the next request", retry_after_s=RETRY_AFTER_S
        )
