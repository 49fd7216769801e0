"""What it takes to repeat a bench on another machine, in one zip: the trace, the aims, which model, how much memory."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import msgspec

from homeai.errors import ConfigError
from homeai.evaluation.bench.conditions import Conditions
from homeai.evaluation.bench.rows import Aims, Findings
from homeai.evaluation.bench.trace import Call, Trace

BENCH: Final = "bench.json"
CALLS: Final = "trace.jsonl"
README: Final = """What is in here repeats a `homeai bench` on another machine:

    homeai bench --bundle THIS_FILE

bench.json   the trace's version, seed and salt, the targets, the model with its hash, what it was run on, and how many
             bytes its weights and its KV cache took
trace.jsonl  what is asked, when, how long: lengths and equal beginnings, no text
"""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`memory`: bytes of weights and KV cache, by variant, as the servers told them."""

    homeai: str
    command: str
    trace_name: str
    trace_version: str
    duration_s: float
    seed: int
    salt: str
    aims: Aims
    conditions: dict[str, Conditions]
    memory: dict[str, dict[str, int]]


def export(findings: Findings, trace: Trace, path: Path) -> None:
    """Raises `ConfigError` when the file cannot be written."""
    manifest = Manifest(
        homeai=findings.version,
        command=findings.command,
        trace_name=trace.name,
        trace_version=trace.version,
        duration_s=trace.duration_s,
        seed=findings.seed,
        salt=findings.salt,
        aims=findings.aims,
        conditions=findings.conditions,
        memory=findings.memory,
    )
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("README.txt", README)
            bundle.writestr(BENCH, msgspec.json.format(msgspec.json.encode(manifest)))
            bundle.writestr(CALLS, msgspec.json.Encoder().encode_lines(trace.calls))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from None


def read(path: Path) -> tuple[Manifest, Trace]:
    """Raises `ConfigError` for what is no bundle, and for a trace that is not the one its version says."""
    try:
        with zipfile.ZipFile(path) as bundle:
            manifest = msgspec.json.decode(bundle.read(BENCH), type=Manifest)
            calls = msgspec.json.Decoder(Call).decode_lines(bundle.read(CALLS))
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise ConfigError(f"{str(path)!r} is no bundle of `homeai bench export`: {error}") from None
    trace = Trace(manifest.trace_name, tuple(calls), manifest.duration_s)
    if trace.version != manifest.trace_version:
        raise ConfigError(f"{str(path)!r}: the trace has version {trace.version}, not {manifest.trace_version}")
    return manifest, trace
