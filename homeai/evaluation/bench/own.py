"""A trace of what the own house asked, from the ledger: instants, lengths, sources, equal beginnings. No text is there.

A prompt becomes one part per block of the prefix that the ledger has a hash of; the hash covers everything before the
block, so equal hashes are equal beginnings, and the words made from them are alike exactly there. Names of sources can
be replaced by numbers, to hand a trace on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from homeai.errors import ConfigError
from homeai.evaluation.bench.trace import Call, Part, Trace

BLOCK: Final = 64  # tokens per hash of `ledger.prefix_block_hashes`
LONG_PROMPT: Final = 1500  # tokens: more is the group of long contexts
COLUMNS: Final = (
    "arrival, source, fairness_class, num_prompt_tokens, num_output_tokens, prefix_hashes, e2e_s, status, finish_reason"
)


class LedgerCall(msgspec.Struct, frozen=True):
    """One row of the ledger."""

    arrival: float
    source: str
    fairness_class: str
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_hashes: list[str]
    e2e_s: float | None
    status: int
    finish_reason: str | None


def read(path: Path, since_s: float, until: float) -> list[LedgerCall]:
    """What arrived in the `since_s` seconds before `until` (Unix time) and was generated. Raises `ConfigError`."""
    if not path.exists():
        raise ConfigError(f"no ledger at {str(path)!r}: nothing was recorded on this machine yet")
    query = f"SELECT {COLUMNS} FROM requests WHERE arrival BETWEEN ? AND ? AND num_prompt_tokens > 0 ORDER BY arrival"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(query, [until - since_s, until]).fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"the ledger {str(path)!r} cannot be read: {error}") from None
    return [_row(row) for row in rows]


def trace_of(rows: Iterable[LedgerCall], *, hides_names: bool = False) -> Trace:
    """Raises `ConfigError` when nothing is left: embeddings and refused requests say nothing about batching."""
    served = [row for row in rows if row.num_output_tokens > 0]
    if not served:
        raise ConfigError("the ledger has no generated answer in that time")
    start = served[0].arrival
    names = {source: f"source-{number}" for number, source in enumerate(sorted({row.source for row in served}))}
    shown = names if hides_names else {source: source for source in names}
    calls = [_call(row, index, start, shown) for index, row in enumerate(served)]
    return Trace.of("own ledger", calls)


def busiest(trace: Trace, duration_s: float) -> Trace:
    """The window of that length with the most calls, from zero on."""
    calls = trace.calls
    counts = [0] * len(calls)
    end = 0
    for begin, call in enumerate(calls):
        while end < len(calls) and calls[end].at < call.at + duration_s:
            end += 1
        counts[begin] = end - begin
    best = max(range(len(calls)), key=counts.__getitem__)
    first_at = calls[best].at
    window = calls[best : best + counts[best]]
    return Trace.of(
        f"{trace.name}, busiest {duration_s:g} s",
        [msgspec.structs.replace(call, at=call.at - first_at) for call in window],
        duration_s,
    )


def overlap_of(rows: Iterable[LedgerCall]) -> list[tuple[float, float]]:
    """Begin and end of each request that was served, in seconds."""
    return [(row.arrival, row.arrival + row.e2e_s) for row in rows if row.e2e_s is not None and row.num_output_tokens]


def _row(columns: tuple[object, ...]) -> LedgerCall:
    arrival, source, fairness_class, num_prompt, num_output, hashes, *rest = columns
    values = (arrival, source, fairness_class, num_prompt, num_output, msgspec.json.decode(str(hashes or "[]")), *rest)
    return msgspec.convert(dict(zip(LedgerCall.__struct_fields__, values, strict=True)), LedgerCall)


def _call(row: LedgerCall, index: int, start: float, names: Mapping[str, str]) -> Call:
    blocks = [Part(digest, BLOCK) for digest in row.prefix_hashes]
    rest = row.num_prompt_tokens - BLOCK * len(blocks)
    tail = [Part(f"own/{index}", rest)] if rest > 0 else []
    left = row.e2e_s if row.finish_reason == "abort" else None
    return Call(
        at=row.arrival - start,
        group=_group(row),
        source=names[row.source],
        fairness_class=row.fairness_class,
        prompt=blocks + tail,
        max_tokens=row.num_output_tokens if left is None else row.num_output_tokens + 256,
        cancel_after_s=left,
    )


def _group(row: LedgerCall) -> str:
    if row.fairness_class == "coding":
        return "agents"
    return "long" if row.num_prompt_tokens > LONG_PROMPT else "chat"
