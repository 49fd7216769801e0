"""What happened, kept in SQLite: a row per request (rejected ones too) and engine events. Never any text.

One thread owns the connection and blocks on a queue; whoever records only puts into that queue. When the
file cannot be written (full disk, locked, gone) rows wait in memory and requests go on. The file also holds
the API keys (`keys.py`), over a connection of their own: WAL lets both read while one writes.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
from sqlite_utils import Database

from homeai.errors import ConfigError

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 4
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS requests (
    request_id TEXT, arrival REAL, api TEXT, source TEXT, fairness_class TEXT, model TEXT,
    num_prompt_tokens INTEGER, num_cached_tokens INTEGER, num_output_tokens INTEGER, prefix_hashes TEXT,
    queue_s REAL, ttft_s REAL, e2e_s REAL, parked_s REAL, num_preemptions INTEGER,
    status INTEGER, finish_reason TEXT, reject_reason TEXT, client_request_id TEXT,
    num_recomputed_tokens INTEGER, num_moved_bytes INTEGER, key TEXT
);
CREATE INDEX IF NOT EXISTS requests_arrival ON requests (arrival);
CREATE INDEX IF NOT EXISTS requests_source ON requests (source);
CREATE TABLE IF NOT EXISTS events (at REAL, kind TEXT, detail TEXT);
CREATE INDEX IF NOT EXISTS events_at ON events (at);
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, hash TEXT NOT NULL, fairness_class TEXT, trusted INTEGER NOT NULL, created_at REAL NOT NULL,
    requests_per_minute INTEGER, tokens_per_day INTEGER, max_context INTEGER, admin INTEGER NOT NULL DEFAULT 0
);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
STEPS = {  # from that version to the next
    1: """
ALTER TABLE requests ADD COLUMN client_request_id TEXT;
ALTER TABLE requests ADD COLUMN num_recomputed_tokens INTEGER;
ALTER TABLE requests ADD COLUMN num_moved_bytes INTEGER;
""",
    2: """
ALTER TABLE requests ADD COLUMN key TEXT;
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, hash TEXT NOT NULL, fairness_class TEXT, trusted INTEGER NOT NULL, created_at REAL NOT NULL
);
ALTER TABLE keys ADD COLUMN requests_per_minute INTEGER;
ALTER TABLE keys ADD COLUMN tokens_per_day INTEGER;
ALTER TABLE keys ADD COLUMN max_context INTEGER;
""",
    3: """
ALTER TABLE keys ADD COLUMN admin INTEGER NOT NULL DEFAULT 0;
""",
}
BATCH_ROWS = 256
MAX_PENDING_ROWS = 10_000
DAY_S = 86_400.0
MAX_RETRY_S = 60.0
MAX_PREFIX_BLOCKS = 64


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request, built once when it ends. `arrival` is Unix time, durations are seconds; None: never got there.

    `request_id` is the answer's id without its prefix; of several choices or prompts, `-1`, `-2`, … follow it.
    """

    request_id: str
    arrival: float
    api: str  # the path that was called
    source: str
    fairness_class: str
    model: str
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    prefix_hashes: list[str] = []  # stored as a JSON list
    queue_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    parked_s: float = 0.0
    num_preemptions: int = 0
    status: int  # of the HTTP answer
    finish_reason: str | None = None
    reject_reason: str | None = None
    client_request_id: str | None = None  # its X-Request-Id
    num_recomputed_tokens: int = 0  # because it was parked
    num_moved_bytes: int = 0  # to host memory and back, while it was parked
    key: str | None = None  # the name of its API key


class Event(msgspec.Struct, frozen=True):
    at: float  # Unix time
    kind: str
    detail: str


def prefix_block_hashes(token_ids: Sequence[int], block: int = 64) -> list[str]:
    """One hash per full block of the prompt, each over everything before it: equal hash, equal prefix.

    Enough to see which sources share how much, and not enough to read what they said. The first 64 blocks only.
    """
    hashes: list[str] = []
    digest = b""
    for start in range(0, min(len(token_ids) // block, MAX_PREFIX_BLOCKS) * block, block):
        tokens = struct.pack(f"<{block}i", *token_ids[start : start + block])
        digest = blake2b(digest + tokens, digest_size=8).digest()
        hashes.append(digest.hex())
    return hashes


def open_database(path: Path, busy_timeout_s: float = 5.0) -> Database:
    """The file with its tables in place, for use by one thread at a time.

    Raises `ConfigError` when a newer homeai wrote it, `sqlite3.Error` or `OSError` when it cannot be used now.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=busy_timeout_s, check_same_thread=False)
    try:
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return Database(connection)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise ConfigError(f"{path} was written by a newer homeai: schema {version}, this one knows {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_upgrade(version) if version else SCHEMA)
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows, never the file


def _upgrade(version: int) -> str:
    """From a file that an earlier homeai wrote, in one transaction."""
    steps = "".join(STEPS[step] for step in range(version, SCHEMA_VERSION))
    return f"BEGIN IMMEDIATE;{steps}PRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;"


class Ledger:
    """`record` and `event` never block and never raise; `connect` and `first_retry_s` are seams for tests."""

    def __init__(
        self,
        path: Path,
        retention_days: int,
        *,
        connect: Callable[[Path], Database] = open_database,
        first_retry_s: float = 1.0,
    ) -> None:
        self._path = path
        self._retention_s = retention_days * DAY_S
        self._connect = connect
        self._first_retry_s = first_retry_s
        self._queue: SimpleQueue[LedgerRow | Event | None] = SimpleQueue()  # None: close
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

        # the thread's own
        self._database: Database | None = None
        self._pending: deque[LedgerRow | Event] = deque()
        self._num_lost = 0
        self._retry_s = 0.0  # 0 while the file can be written
        self._due_at = 0.0  # monotonic: the next retry, or else the next pruning
        self._prune_at = 0.0
        self._closing = False

    def start(self) -> None:
        self._thread.start()

    def record(self, row: LedgerRow) -> None:
        self._queue.put(row)

    def event(self, kind: str, detail: str) -> None:
        self._queue.put(Event(time.time(), kind, detail))

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is left; gives up after `timeout_s`."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout_s)

    # ---- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._receive()
                if self._closing or not self._retry_s or time.monotonic() >= self._due_at:
                    self._write()
        except ConfigError as error:
            logger.warning("the ledger is off: %s", error)
            while not self._closing:
                self._closing = self._queue.get() is None
        else:
            self._finish()

    def _receive(self) -> None:
        """Blocks until there is a row or something is due, then takes all rows there are."""
        with suppress(Empty):
            item = self._queue.get(timeout=max(0.0, self._due_at - time.monotonic()))
            while item is not None:
                self._keep(item)
                item = self._queue.get_nowait()
            self._closing = True

    def _keep(self, item: LedgerRow | Event) -> None:
        if len(self._pending) == MAX_PENDING_ROWS:
            self._pending.popleft()
            self._num_lost += 1
        self._pending.append(item)

    def _write(self) -> None:
        try:
            self._database = self._database or self._connect(self._path)
            self._prune_if_due(self._database)
            while self._pending:
                self._write_batch(self._database)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        else:
            self._succeeded()

    def _write_batch(self, database: Database) -> None:
        """One transaction; rows leave memory only after it."""
        batch = list(islice(self._pending, BATCH_ROWS))
        with database.atomic():
            database.table("requests").insert_all(_record(item) for item in batch if isinstance(item, LedgerRow))
            database.table("events").insert_all(_record(item) for item in batch if isinstance(item, Event))
        for _ in batch:
            self._pending.popleft()

    def _prune_if_due(self, database: Database) -> None:
        now = time.monotonic()
        if now < self._prune_at:
            return
        if self._retention_s:
            oldest = time.time() - self._retention_s
            database.table("requests").delete_where("arrival < ?", [oldest])
            database.table("events").delete_where("at < ?", [oldest])
        self._prune_at = now + DAY_S

    def _failed(self, error: Exception) -> None:
        if not self._retry_s:
            logger.warning("the ledger cannot be written (%s): %s; rows wait in memory", self._path, error)
        self._disconnect()  # the next attempt opens the file afresh: it may be another one by then
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S) or self._first_retry_s
        self._due_at = time.monotonic() + self._retry_s

    def _succeeded(self) -> None:
        if self._retry_s:
            logger.info("the ledger is written again; %d rows were lost", self._num_lost)
        self._retry_s, self._num_lost = 0.0, 0
        self._due_at = self._prune_at

    def _finish(self) -> None:
        if self._pending:
            logger.warning("the ledger closes with %d rows unwritten", len(self._pending) + self._num_lost)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _record(item: LedgerRow | Event) -> dict[str, object]:
    """Columns to values; half a surrogate pair, which a client may send in a name, is no text for SQLite."""
    columns: dict[str, object] = msgspec.structs.asdict(item)
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in columns.items()
    }
