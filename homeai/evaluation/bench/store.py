"""Benches kept in SQLite: `benches` with the findings, `plays` with every call and reading of each."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
from sqlite_utils import Database

from homeai.errors import ConfigError
from homeai.evaluation.bench.records import Play
from homeai.evaluation.bench.rows import Findings, Row
from homeai.evaluation.bench.trace import Call, Trace

_findings = msgspec.json.Decoder(Findings)
_play = msgspec.json.Decoder(Play)
_calls = msgspec.json.Decoder(list[Call])


class Store:
    """One file, used by one process. Raises `ConfigError` when it cannot be used."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = Database(path)
            self._database.table("benches").create(
                {
                    "bench_id": str,
                    "started_at": float,
                    "trace": str,
                    "calls": str,
                    "duration_s": float,
                    "findings": str,
                },
                pk="bench_id",
                if_not_exists=True,
            )
            self._database.table("plays").create(
                {"bench_id": str, "row_id": str, "round": int, "variant": str, "load": str, "play": str},
                pk=("bench_id", "row_id", "round"),
                if_not_exists=True,
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{str(path)!r} cannot be used for results: {error}") from None

    def close(self) -> None:
        self._database.close()

    def save(self, findings: Findings, trace: Trace) -> None:
        """Over what was there of the same bench."""
        row = {
            "bench_id": findings.bench_id,
            "started_at": findings.started_at,
            "trace": trace.name,
            "calls": msgspec.json.encode(trace.calls).decode(),
            "duration_s": trace.duration_s,
            "findings": msgspec.json.encode(findings).decode(),
        }
        self._database.table("benches").upsert(row, pk="bench_id")

    def save_play(self, findings: Findings, row: Row, round_number: int, play: Play) -> None:
        columns = {
            "bench_id": findings.bench_id,
            "row_id": row.id,
            "round": round_number,
            "variant": row.variant,
            "load": row.load.label,
            "play": msgspec.json.encode(play).decode(),
        }
        self._database.table("plays").upsert(columns, pk=("bench_id", "row_id", "round"))

    def list(self) -> list[Findings]:
        """The latest first."""
        rows = self._database.query("SELECT findings FROM benches ORDER BY started_at DESC")
        return [_findings.decode(row["findings"]) for row in rows]

    def load(self, bench_id: str | None) -> tuple[Findings, Trace]:
        """That one, or the latest. Raises `ConfigError` when there is none."""
        query, values = "SELECT * FROM benches ORDER BY started_at DESC LIMIT 1", []
        if bench_id is not None:
            query, values = "SELECT * FROM benches WHERE bench_id = ?", [bench_id]
        found = next(iter(self._database.query(query, values)), None)
        if found is None:
            raise ConfigError(f"no bench {bench_id or 'was run yet'}; `homeai bench list` shows what there is")
        trace = Trace(found["trace"], tuple(_calls.decode(found["calls"])), found["duration_s"])
        return _findings.decode(found["findings"]), trace

    def play(self, bench_id: str, row_id: str) -> Play | None:
        """The first round of a row."""
        query = "SELECT play FROM plays WHERE bench_id = ? AND row_id = ? ORDER BY round LIMIT 1"
        found = next(iter(self._database.query(query, [bench_id, row_id])), None)
        return _play.decode(found["play"]) if found else None
