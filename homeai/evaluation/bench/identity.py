"""What a server is and serves, as far as it tells: for `Conditions`. Asks, and changes nothing."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
import psutil

from homeai.errors import HomeAIError
from homeai.evaluation.bench.conditions import UNKNOWN
from homeai.hardware import MachineProbe, num_physical_cores
from homeai.model_digest import model_digest
from homeai.status import Status

T = TypeVar("T")

SHOWN: Final = 16  # digits of a hash

TEXT: Final = "Größe 3.14159, naïve façade; 東京 — don't\n\tdef f(x): return x**2  # 42 😀"  # spelt differently by each


_SIZES: Final = re.compile(r" - (Small|Medium|Large)\b")


class _Meta(msgspec.Struct, frozen=True):
    size: int | None = None


class _Model(msgspec.Struct, frozen=True):
    id: str
    meta: _Meta | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


class _Generation(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _Props(msgspec.Struct, frozen=True):
    """llama-server's, and ours."""

    default_generation_settings: _Generation = _Generation()
    total_slots: int | None = None
    model_path: str = ""
    model_ftype: str | None = None
    build_info: str | None = None


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Version(msgspec.Struct, frozen=True):
    version: str


class _TagDetails(msgspec.Struct, frozen=True):
    quantization_level: str = UNKNOWN


class _Tag(msgspec.Struct, frozen=True):
    name: str
    digest: str = UNKNOWN
    details: _TagDetails = _TagDetails()


class _Tags(msgspec.Struct, frozen=True):
    models: list[_Tag] = []


@dataclass(frozen=True, slots=True)
class Identity:
    """`forces_length`: it has `ignore_eos`. `status` is homeai's, None for others."""

    server: str
    model: str
    model_hash: str
    tokenizer: str
    quantisation: str
    context: str
    hardware: str
    forces_length: bool
    settings: dict[str, str]
    status: Status | None = None


async def identify(http: httpx.AsyncClient, url: str, model: str | None) -> Identity:
    """`model`: the name to ask for, where a server has several. Raises `HomeAIError` when nobody answers."""
    try:
        models = await _get(http, "/v1/models", _Models)
    except httpx.HTTPError as error:
        raise HomeAIError(f"no server answers at {url}: {error}") from None
    status = await _found(http, "/api/status", Status)
    props = await _found(http, "/props", _Props)
    version = await _found(http, "/api/version", _Version)
    if status is None and props is None and version is not None:
        return await _ollama(http, url, version, model)
    listed = next((each for each in (models.data if models else []) if model in (None, each.id)), None)
    name = model or (listed.id if listed else "default")
    context = (props.default_generation_settings.n_ctx if props else None) or (listed.max_model_len if listed else None)
    return Identity(
        server=_server(status, props),
        model=name,
        model_hash=await _model_hash(http, url, props, is_homeai=status is not None),
        tokenizer=await _tokenizer(http),
        quantisation=quantisation((props.model_ftype if props else None) or UNKNOWN),
        context=str(context) if context else UNKNOWN,
        hardware=hardware_of(url, status),
        forces_length=status is not None or props is not None,
        settings=_settings(status, props),
        status=status,
    )


def quantisation(text: str) -> str:
    """llama-server's “Q4_K - Medium” as files are called: Q4_K_M."""
    return _SIZES.sub(lambda match: f"_{match[1][0]}", text)


def is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def hardware_of(url: str, status: Status | None) -> str:
    """This machine's, or what a daemon elsewhere tells."""
    if is_here(url):
        return machine()
    if status is None:
        return UNKNOWN
    gpu = status.memory.gpu
    return f"{gpu.name if gpu else 'no GPU'}, {status.memory.total_bytes / 2**30:.0f} GiB"


@lru_cache(maxsize=1)
def machine() -> str:
    """Processor, cores, memory, GPU of this machine."""
    gpu = MachineProbe().gpu()
    parts = [
        _processor(),
        f"{num_physical_cores()} cores",
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        f"{gpu.name} {gpu.total_bytes / 2**30:.0f} GiB" if gpu else "no GPU",
    ]
    return ", ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


async def _ollama(http: httpx.AsyncClient, url: str, version: _Version, model: str | None) -> Identity:
    tags = await _found(http, "/api/tags", _Tags) or _Tags()
    tag = next((each for each in tags.models if model in (None, each.name)), None)
    if tag is None:
        raise HomeAIError(f"{url} has no model {model or 'at all'}: it has {', '.join(t.name for t in tags.models)}")
    return Identity(
        server=f"Ollama {version.version}",
        model=tag.name,
        model_hash=UNKNOWN,  # its digest is of a manifest, not of the file
        tokenizer=UNKNOWN,
        quantisation=tag.details.quantization_level,
        context=UNKNOWN,
        hardware=hardware_of(url, None),
        forces_length=False,
        settings={},
    )


def _server(status: Status | None, props: _Props | None) -> str:
    if status is not None:
        return f"homeai {status.version}"
    if props is not None:
        return f"llama-server {props.build_info or ''}".strip()
    return "OpenAI-compatible"


def _settings(status: Status | None, props: _Props | None) -> dict[str, str]:
    """As far as it tells, in our words."""
    if status is None:
        return {"scheduler.max_num_seqs": str(props.total_slots)} if props and props.total_slots else {}
    return {
        "scheduler.mode": status.policy.mode,
        "scheduler.chunked_prefill": str(status.policy.chunked_prefill).lower(),
        "scheduler.max_chunk_tokens": str(status.policy.max_chunk_tokens),
        "scheduler.max_num_batched_tokens": str(status.batch.max_num_batched_tokens),
        "scheduler.max_num_seqs": str(status.batch.max_num_seqs),
        "scheduler.kv_cells": str(status.kv.total),
    }


async def _tokenizer(http: httpx.AsyncClient) -> str:
    try:
        response = await http.post("/tokenize", json={"content": TEXT}, timeout=30)
        tokens = msgspec.json.decode(response.content, type=_Tokens).tokens
    except (httpx.HTTPError, msgspec.MsgspecError):
        return UNKNOWN
    return sha256(msgspec.json.encode(tokens)).hexdigest()[:SHOWN]


async def _model_hash(http: httpx.AsyncClient, url: str, props: _Props | None, *, is_homeai: bool) -> str:
    """As homeai tells it in Ollama's words, or of the file that a server on this machine says it has."""
    if is_homeai:
        tags = await _found(http, "/api/tags", _Tags)
        return tags.models[0].digest[:SHOWN] if tags and tags.models else UNKNOWN
    if props is None or not props.model_path or not is_here(url):
        return UNKNOWN
    try:
        return _digest(Path(props.model_path))
    except OSError:
        return UNKNOWN


def _digest(path: Path) -> str:
    return model_digest(path, path.stat().st_size)[:SHOWN]


async def _found(http: httpx.AsyncClient, path: str, kind: type[T]) -> T | None:
    """None where there is no such thing."""
    try:
        return await _get(http, path, kind)
    except httpx.HTTPError:
        return None


async def _get(http: httpx.AsyncClient, path: str, kind: type[T]) -> T | None:
    response = await http.get(path, timeout=30)
    if response.status_code != 200:
        return None
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.MsgspecError:
        return None
