"""A daemon of the bench's own, for one setting: `homeai serve` on a free port, with a ledger of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from homeai.errors import HomeAIError

START_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 60.0
_URL: Final = re.compile(rb"status page +(https?://\S+?)/?\s*$")


@dataclass(frozen=True, slots=True)
class OwnDaemon:
    """`start_s`: from the command to the first request it could take, the model loaded."""

    url: str
    pid: int
    ledger: Path
    start_s: float


@asynccontextmanager
async def serving(
    model: Path, config: Path | None, settings: Mapping[str, str], classes: Mapping[str, str]
) -> AsyncIterator[OwnDaemon]:
    """Until the block ends. `classes` of sources, so that the trace's are known. Raises `HomeAIError` with its log."""
    with tempfile.TemporaryDirectory(prefix="homeai-bench-") as data_dir:
        begin = perf_counter()
        process = await asyncio.create_subprocess_exec(
            *command(model, config, Path(data_dir), settings, classes),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,  # Ctrl-C is the bench's: it ends its child itself
        )
        log: list[bytes] = []
        assert process.stderr is not None
        reader = asyncio.create_task(_drain(process.stderr, log))
        try:
            url = await _url(process, log)
            yield OwnDaemon(url, process.pid, Path(data_dir) / "ledger.db", perf_counter() - begin)
        finally:
            await _stop(process)
            await reader


def command(
    model: Path, config: Path | None, data_dir: Path, settings: Mapping[str, str], classes: Mapping[str, str]
) -> list[str]:
    """What is run. The bench reaches it in the plain, alone, and reads its ledger, whatever `config` says."""
    fixed = {
        "sources": _sources(classes),
        "server.listen": "[]",
        "server.auth": "auto",
        "server.tls_cert": "null",
        "server.tls_key": "null",
        "server.log_level": "warning",
        "ledger.enabled": "true",
        "ledger.path": msgspec.json.encode(str(data_dir / "ledger.db")).decode(),
    }
    given = fixed | dict(settings)
    return [
        *(sys.executable, "-m", "homeai", "serve", "--host", "127.0.0.1", "--port", "0"),
        *("--model", str(model), "--data-dir", str(data_dir)),
        *(("--config", str(config)) if config else ()),
        *(argument for key, value in given.items() for argument in ("--set", f"{key}={value}")),
    ]


def _sources(classes: Mapping[str, str]) -> str:
    """A list in YAML, of which JSON is a part."""
    return msgspec.json.encode(
        [
            {"name": name, "class": fairness_class, "match": {"header": [name]}}
            for name, fairness_class in classes.items()
        ]
    ).decode()


async def _url(process: asyncio.subprocess.Process, log: Sequence[bytes]) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            async for line in process.stdout:
                if match := _URL.search(line):
                    return match[1].decode()
    except TimeoutError:
        raise HomeAIError(f"homeai serve was not ready within {START_TIMEOUT_S:.0f} s") from None
    await process.wait()
    said = b"\n".join(log[-3:]).decode("utf-8", "replace").strip()
    raise HomeAIError(f"homeai serve ended with {process.returncode}: {said or 'it said nothing'}")


async def _drain(stream: asyncio.StreamReader, log: list[bytes]) -> None:
    async for line in stream:
        log.append(line.rstrip())
        del log[:-50]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
