"""The ledger, read only: requests and events since an instant."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from homeai.evaluation.doctor.facts import Event, Row

MAX_ROWS: Final = 20_000  # the latest
COLUMNS: Final = (
    "arrival, source, fairness_class, num_prompt_tokens, num_cached_tokens, num_output_tokens, prefix_hashes, "
    "queue_s, ttft_s, e2e_s, parked_s, num_preemptions, num_recomputed_tokens, status, finish_reason, reject_reason"
)


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    arrival: float
    source: str
    fairness_class: str
    num_prompt: int
    num_cached: int
    num_output: int
    prefix_hashes: str | None
    queue_s: float | None
    ttft_s: float | None
    e2e_s: float | None
    parked_s: float | None
    num_preemptions: int
    num_recomputed: int | None
    status: int
    finish_reason: str | None
    reject_reason: str | None


def read(path: Path, since: float) -> tuple[list[Row], list[Event]]:
    """Oldest first; nothing from a file that is not there. Raises `sqlite3.Error` for one that cannot be read."""
    if not path.exists():
        return [], []
    query = f"SELECT {COLUMNS} FROM requests WHERE arrival >= ? ORDER BY arrival DESC LIMIT {MAX_ROWS}"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute(query, [since]).fetchall()
        events = database.execute("SELECT at, kind, detail FROM events WHERE at >= ? ORDER BY at", [since]).fetchall()
    return [_row(msgspec.convert(row, _Columns)) for row in reversed(rows)], [Event(*event) for event in events]


def _row(columns: _Columns) -> Row:
    return Row(
        arrival=columns.arrival,
        source=columns.source,
        fairness_class=columns.fairness_class,
        num_prompt=columns.num_prompt,
        num_cached=columns.num_cached,
        num_output=columns.num_output,
        prefix_hashes=tuple(msgspec.json.decode(columns.prefix_hashes or "[]", type=list[str])),
        queue_s=columns.queue_s,
        ttft_s=columns.ttft_s,
        e2e_s=columns.e2e_s,
        parked_s=columns.parked_s or 0.0,
        num_preemptions=columns.num_preemptions,
        num_recomputed=columns.num_recomputed or 0,
        status=columns.status,
        finish_reason=columns.finish_reason,
        reject_reason=columns.reject_reason,
    )
