"""Files, batches and their lines in SQLite. Used by one thread; every call blocks.

A line's answer and that it is done are written in one transaction, and so is the end of a batch with its last line.
Transactions are synced to disk (`synchronous = FULL`): what was reported as done is done after a power cut too.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from sqlite_utils import Database

from homeai.errors import ConfigError
from homeai.server.batches.records import OUTPUT, Batch, LineState, Place, Status, StoredFile, Usage

SCHEMA_VERSION: Final = 1
SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS files (
    file_id TEXT PRIMARY KEY, owner TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,
    num_bytes INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL, batch_id TEXT, line_state INTEGER
);
CREATE TABLE IF NOT EXISTS batches (
    batch_id TEXT PRIMARY KEY, owner TEXT NOT NULL, key TEXT, source TEXT NOT NULL, fairness_class TEXT NOT NULL,
    endpoint TEXT NOT NULL, input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, metadata TEXT,
    status TEXT NOT NULL, errors TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL, ended_at REAL,
    outputs_kept_s REAL, num_lines INTEGER NOT NULL, num_completed INTEGER NOT NULL, num_failed INTEGER NOT NULL,
    num_input_tokens INTEGER NOT NULL, num_cached_tokens INTEGER NOT NULL, num_output_tokens INTEGER NOT NULL,
    num_reasoning_tokens INTEGER NOT NULL, output_file_id TEXT, error_file_id TEXT
);
CREATE TABLE IF NOT EXISTS lines (
    batch_id TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, start INTEGER NOT NULL,
    size INTEGER NOT NULL, state INTEGER NOT NULL, answer BLOB, PRIMARY KEY (batch_id, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lines_waiting ON lines (batch_id, number) WHERE state = {LineState.WAITING};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
JSON_COLUMNS: Final = ("metadata", "errors")
ROWS_AT_ONCE: Final = 256
PRIVATE: Final = 0o700  # what people ask is nobody else's business


class InUse(Exception):
    """A batch that is in progress needs the file."""


class Store:
    """Raises `sqlite3.Error` or `OSError` when the file cannot be used now."""

    def __init__(self, path: Path, busy_timeout_s: float = 5.0) -> None:
        """Raises `ConfigError` when a newer homeai wrote the file."""
        path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=busy_timeout_s, check_same_thread=False)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise ConfigError(f"{path} was written by a newer homeai: schema {version} > {SCHEMA_VERSION}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if version < SCHEMA_VERSION:
                connection.executescript(SCHEMA)
        except BaseException:
            connection.close()
            raise
        self._database = Database(connection)

    def close(self) -> None:
        self._database.close()

    # ---- files -----------------------------------------------------------------------------------

    def add_file(self, file: StoredFile) -> None:
        self._database.table("files").insert(msgspec.structs.asdict(file))

    def file(self, file_id: str) -> StoredFile | None:
        return next(self._files("WHERE file_id = ?", [file_id]), None)

    def files(
        self, owner: str | None, purpose: str | None, after: str | None, limit: int, *, oldest_first: bool
    ) -> list[StoredFile]:
        """At most `limit` of an owner, None for all, that come behind the file `after`."""
        side, order = (">", "ASC") if oldest_first else ("<", "DESC")
        where = f"""
            WHERE (:owner IS NULL OR owner = :owner) AND (:purpose IS NULL OR purpose = :purpose)
            AND (:after IS NULL OR rowid {side} (SELECT rowid FROM files WHERE file_id = :after))
            ORDER BY rowid {order} LIMIT :limit
        """
        return list(self._files(where, {"owner": owner, "purpose": purpose, "after": after, "limit": limit}))

    def uploaded_ids(self) -> set[str]:
        return {row["file_id"] for row in self._database.query("SELECT file_id FROM files WHERE batch_id IS NULL")}

    def num_uploaded_bytes(self) -> int:
        query = "SELECT COALESCE(SUM(num_bytes), 0) AS total FROM files WHERE batch_id IS NULL"
        return int(next(iter(self._database.query(query)))["total"])

    def remove_file(self, file: StoredFile) -> None:
        """Raises `InUse`."""
        needed_by = "input_file_id = ? AND status = ?"
        with self._database.atomic():
            if self._database.table("batches").count_where(needed_by, [file.file_id, Status.IN_PROGRESS]):
                raise InUse
            self._database.execute("DELETE FROM files WHERE file_id = ?", [file.file_id])
            self._database.execute(
                "UPDATE lines SET answer = NULL WHERE batch_id = ? AND state = ?", [file.batch_id, file.line_state]
            )

    def answers(self, file: StoredFile, after: int) -> tuple[bytes, int] | None:
        """Some of an output's lines, behind line `after`, and the number of their last; None when there are no more."""
        query = """
            SELECT number, answer FROM lines WHERE batch_id = ? AND state = ? AND number > ? AND answer IS NOT NULL
            ORDER BY number LIMIT ?
        """
        rows = self._database.execute(query, [file.batch_id, file.line_state, after, ROWS_AT_ONCE]).fetchall()
        return (b"".join(bytes(answer) + b"\n" for _, answer in rows), rows[-1][0]) if rows else None

    # ---- batches ---------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, places: Sequence[Place]) -> None:
        with self._database.atomic():
            self._database.table("batches").insert(_row(batch))
            self._database.table("lines").insert_all(
                {"batch_id": batch.batch_id, "number": number, "state": LineState.WAITING, **place._asdict()}
                for number, place in enumerate(places, 1)
            )

    def batch(self, batch_id: str) -> Batch | None:
        return next(self._batches("WHERE batch_id = ?", [batch_id]), None)

    def batches(self, owner: str | None, after: str | None, limit: int) -> list[Batch]:
        """At most `limit` of an owner, None for all, latest first, that come behind the batch `after`."""
        where = """
            WHERE (:owner IS NULL OR owner = :owner)
            AND (:after IS NULL OR rowid < (SELECT rowid FROM batches WHERE batch_id = :after))
            ORDER BY rowid DESC LIMIT :limit
        """
        return list(self._batches(where, {"owner": owner, "after": after, "limit": limit}))

    def open_batches(self) -> list[tuple[Batch, list[int]]]:
        """Those in progress, oldest first, with the numbers of their lines that are not done."""
        open_ones = self._batches("WHERE status = ? ORDER BY rowid", [Status.IN_PROGRESS])
        return [(batch, self._waiting(batch.batch_id)) for batch in open_ones]

    def place(self, batch_id: str, number: int) -> Place:
        query = "SELECT custom_id, start, size FROM lines WHERE batch_id = ? AND number = ?"
        return Place(*self._database.execute(query, [batch_id, number]).fetchone())

    # ---- what became of them ---------------------------------------------------------------------

    def finish_line(
        self, batch_id: str, number: int, state: LineState, answer: bytes, usage: Usage, now: float
    ) -> Batch | None:
        """Write it once; the last line ends the batch. None: it was done before, or the batch has ended."""
        is_completed = state is LineState.COMPLETED
        with self._database.atomic():
            batch = self.batch(batch_id)
            if batch is None or batch.status is not Status.IN_PROGRESS:
                return None
            done = self._database.execute(
                "UPDATE lines SET state = ?, answer = ? WHERE batch_id = ? AND number = ? AND state = 0",
                [state, answer, batch_id, number],
            )
            if done.rowcount == 0:
                return None
            counted = msgspec.structs.replace(
                batch,
                num_completed=batch.num_completed + is_completed,
                num_failed=batch.num_failed + (not is_completed),
                num_input_tokens=batch.num_input_tokens + usage.num_input_tokens,
                num_cached_tokens=batch.num_cached_tokens + usage.num_cached_tokens,
                num_output_tokens=batch.num_output_tokens + usage.num_output_tokens,
                num_reasoning_tokens=batch.num_reasoning_tokens + usage.num_reasoning_tokens,
            )
            if counted.num_completed + counted.num_failed == counted.num_lines:
                counted = self._ended(counted, Status.COMPLETED, now)
            self._write(counted)
        return counted

    def end(self, batch_id: str, status: Status, code: str, message: str, now: float) -> Batch | None:
        """Whatever waits of it fails, with this error. None: there is none; one that has ended stays as it is."""
        with self._database.atomic():
            batch = self.batch(batch_id)
            if batch is None or batch.status is not Status.IN_PROGRESS:
                return batch
            self._database.execute(
                """
                UPDATE lines SET state = :failed, answer = CAST(json_object(
                    'id', :line_id || '_' || number, 'custom_id', custom_id, 'response', NULL,
                    'error', json_object('code', :code, 'message', :message)
                ) AS BLOB) WHERE batch_id = :batch_id AND state = 0
                """,
                {
                    "failed": LineState.FAILED,
                    "line_id": batch_id.replace("batch_", "batch_req_", 1),
                    "code": code,
                    "message": message,
                    "batch_id": batch_id,
                },
            )
            ended = msgspec.structs.replace(batch, num_failed=batch.num_lines - batch.num_completed)
            ended = self._ended(ended, status, now)
            self._write(ended)
        return ended

    def prune(self, now: float, oldest: float) -> list[str]:
        """Forget files that have expired and batches that ended before `oldest`. The uploaded files among them."""
        removed = []
        for file in self._files("WHERE expires_at <= ?", [now]):
            try:
                self.remove_file(file)
            except InUse:
                continue
            removed += [file.file_id] if file.batch_id is None else []
        gone = "SELECT batch_id FROM batches WHERE ended_at < :oldest"
        with self._database.atomic():
            for table in ("lines", "files", "batches"):
                self._database.execute(f"DELETE FROM {table} WHERE batch_id IN ({gone})", {"oldest": oldest})
        return removed

    def _waiting(self, batch_id: str) -> list[int]:
        query = "SELECT number FROM lines WHERE batch_id = ? AND state = 0 ORDER BY number"
        return [number for (number,) in self._database.execute(query, [batch_id])]

    def _ended(self, batch: Batch, status: Status, now: float) -> Batch:
        """With the files of its answers, where it has any; they are written here."""
        return msgspec.structs.replace(
            batch,
            status=status,
            ended_at=now,
            output_file_id=self._add_output(batch, LineState.COMPLETED, "output", now),
            error_file_id=self._add_output(batch, LineState.FAILED, "errors", now),
        )

    def _add_output(self, batch: Batch, state: LineState, name: str, now: float) -> str | None:
        query = "SELECT COUNT(*), SUM(LENGTH(answer) + 1) FROM lines WHERE batch_id = ? AND state = ?"
        num_lines, num_bytes = self._database.execute(query, [batch.batch_id, state]).fetchone()
        if not num_lines:
            return None
        file = StoredFile(
            file_id=new_id("file-"),
            owner=batch.owner,
            filename=f"{batch.batch_id}_{name}.jsonl",
            purpose=OUTPUT,
            num_bytes=num_bytes,
            created_at=now,
            expires_at=None if batch.outputs_kept_s is None else now + batch.outputs_kept_s,
            batch_id=batch.batch_id,
            line_state=state,
        )
        self.add_file(file)
        return file.file_id

    def _write(self, batch: Batch) -> None:
        self._database.table("batches").update(batch.batch_id, _row(batch))

    def _files(self, where: str, params: Sequence[object] | dict[str, object]) -> Iterator[StoredFile]:
        rows = list(self._database.query(f"SELECT * FROM files {where}", params))
        return (msgspec.convert(row, StoredFile) for row in rows)

    def _batches(self, where: str, params: Sequence[object] | dict[str, object]) -> Iterator[Batch]:
        rows = list(self._database.query(f"SELECT * FROM batches {where}", params))
        return (_batch(row) for row in rows)


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def _row(batch: Batch) -> dict[str, object]:
    row = msgspec.structs.asdict(batch)
    return {name: _json(value) if name in JSON_COLUMNS else value for name, value in row.items()}


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _batch(row: dict[str, object]) -> Batch:
    for name in JSON_COLUMNS:
        text = row[name]
        row[name] = msgspec.json.decode(text) if isinstance(text, str) else None
    return msgspec.convert(row, Batch)
