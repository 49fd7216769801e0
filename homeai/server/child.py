"""The engine child as an operating-system process: started by exec, joined by one socket, ended for sure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping

from homeai.messages import HEADER, Down, EngineConfig, LoadModel, Up, encode_frame, up_decoder

KILL_AFTER_S = 5.0

ENGINE_ENVIRONMENT = {
    # a failed GGML_ASSERT would first run a debugger, which can hang for seconds
    "GGML_NO_BACKTRACE": "1",
    # OpenMP's threads wait for each other by spinning, 300,000 rounds by default: one busy neighbour on the
    # machine then costs a step twenty times its time; this few cost nothing when there is none
    "GOMP_SPINCOUNT": "5000",
}


def engine_environment(ours: Mapping[str, str], device: str) -> dict[str, str]:
    """What every incarnation gets: ours, and defaults that the owner can override."""
    hidden_gpus = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return ENGINE_ENVIRONMENT | dict(ours) | hidden_gpus


class EngineChild:
    """One incarnation of the engine. Its messages come from its own socket, so an old one cannot be mistaken."""

    def __init__(
        self, config: EngineConfig, environment: Mapping[str, str], *, log_level: str, log_format: str
    ) -> None:
        self._sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "homeai.engine.process", "--fd", str(theirs.fileno())),
                    *("--log-level", log_level, "--log-format", log_format),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
            )
            self._sock.sendall(encode_frame(LoadModel(config)))  # into the buffer, whatever became of the child
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def messages(self) -> AsyncIterator[Up]:
        """Everything the engine says, until its socket closes."""
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                yield up_decoder.decode(await reader.readexactly(length))

    def send(self, message: Down) -> None:
        """Never blocks; lost when the child is gone, which `messages` then says by ending."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_frame(message))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Close the socket, which ends the child, and reap it; its exit code. Kills what does not go."""
        if self._writer is not None:
            self._writer.close()
        else:
            self._sock.close()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._process.wait, KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return await loop.run_in_executor(None, self._process.wait)
