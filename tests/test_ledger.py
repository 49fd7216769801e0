from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlite_utils import Database

from homeai import ledger as ledger_module
from homeai.ledger import BATCH_ROWS, DAY_S, Ledger, LedgerRow, open_database, prefix_block_hashes

PATIENCE_S = 60.0  # how long a test waits for what must happen; it is never waited out when all is well


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / "ledger.db"


@pytest.fixture
def said(caplog):
    """Waits for a line of the ledger's log that contains the words."""
    caplog.set_level(logging.INFO, logger="homeai.ledger")
    spoken = threading.Condition()

    class Notify(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with spoken:
                spoken.notify_all()

    def wait_for(words: str) -> str:
        def line() -> str | None:
            return next((message for message in caplog.messages if words in message), None)

        with spoken:
            assert spoken.wait_for(line, PATIENCE_S), f"nobody said {words!r}: {caplog.messages}"
        return line()

    handler = Notify()
    caplog.handler.setLevel(0)
    logging.getLogger().addHandler(handler)  # after caplog's own: it has the record by then
    yield wait_for
    logging.getLogger().removeHandler(handler)


def row(request_id: str = "r", **changes) -> LedgerRow:
    defaults = {
        "request_id": request_id,
        "arrival": time.time(),
        "api": "/v1/chat/completions",
        "source": "kitchen",
        "fairness_class": "voice",
        "model": "m",
        "status": 200,
    }
    return LedgerRow(**defaults | changes)


def rows(path: Path, table: str = "requests") -> list[dict]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(found) for found in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


def written(path: Path, *items: LedgerRow, retention_days: int = 90) -> list[dict]:
    ledger = Ledger(path, retention_days)
    ledger.start()
    for item in items:
        ledger.record(item)
    ledger.close()
    return rows(path)


def impatient(path: Path, **seams) -> Ledger:
    """One that gives up and retries at once."""
    seams = {"connect": partial(open_database, busy_timeout_s=0.01), "first_retry_s": 0.01} | seams
    ledger = Ledger(path, 90, **seams)
    ledger.start()
    return ledger


# ---- rows ---------------------------------------------------------------------------------------------


def test_request_is_one_row_with_everything_in_it(path):
    given = row(
        num_prompt_tokens=130,
        num_cached_tokens=64,
        num_output_tokens=7,
        prefix_hashes=["aa", "bb"],
        queue_s=0.1,
        ttft_s=0.5,
        e2e_s=2.0,
        parked_s=0.25,
        num_preemptions=1,
        finish_reason="stop",
    )
    (found,) = written(path, given)
    assert json.loads(found.pop("prefix_hashes")) == ["aa", "bb"]
    assert found == {name: getattr(given, name) for name in LedgerRow.__struct_fields__ if name != "prefix_hashes"}


def test_rejected_request_is_a_row_too(path):
    (found,) = written(path, row(status=429, reject_reason="queue_full"))
    assert (found["status"], found["reject_reason"], found["ttft_s"]) == (429, "queue_full", None)


def test_close_drains_more_than_a_batch_in_order(path):
    names = [f"r{i}" for i in range(BATCH_ROWS * 2 + 10)]
    assert [found["request_id"] for found in written(path, *map(row, names))] == names


def test_events_are_kept(path):
    ledger = Ledger(path, 90)
    ledger.start()
    ledger.event("engine_ready", "loaded in 0.5 s")
    ledger.close()
    (found,) = rows(path, "events")
    assert (found["kind"], found["detail"]) == ("engine_ready", "loaded in 0.5 s")


def test_name_that_is_no_text_does_not_stop_the_ledger(path):
    assert [found["source"] for found in written(path, row(source="\ud83d"), row(source="next"))] == ["?", "next"]


def test_readers_are_not_blocked_and_look_ups_are_indexed(path):
    written(path, row())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        for where in ("arrival > 1", "source = 'x'"):
            (plan,) = connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM requests WHERE {where}")
            assert "USING INDEX" in plan[3]


def test_ledger_goes_on_where_it_stopped(path):
    written(path, row("a"))
    assert len(written(path, row("b"))) == 2


def test_close_without_start_is_nothing(path):
    Ledger(path, 90).close()
    assert not path.exists()


# ---- retention ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retention_days", "kept"), [(90, ["new"]), (0, ["old", "new"])])
def test_old_rows_are_deleted_at_start(path, retention_days, kept):
    written(path, row("old", arrival=time.time() - 91 * DAY_S), row("new"))
    assert [found["request_id"] for found in written(path, retention_days=retention_days)] == kept


def test_old_rows_are_deleted_again_when_the_next_pruning_is_due(path):
    ledger = Ledger(path, 1)  # its thread is not started: the test takes its place
    ledger._keep(row("old", arrival=0.0))
    ledger._write()
    assert len(rows(path)) == 1, "written after the pruning at start"
    assert ledger._due_at == ledger._prune_at > 0
    ledger._prune_at = 0.0
    ledger._write()
    assert rows(path) == []
    ledger._disconnect()


# ---- when the file cannot be written ------------------------------------------------------------------


def test_locked_file_costs_no_row_and_is_told_once(path, said, caplog):
    written(path, row("before"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        ledger = impatient(path)
        ledger.record(row("during"))
        assert "database is locked" in said("cannot be written")
        other.execute("ROLLBACK")
    assert said("written again") == "the ledger is written again; 0 rows were lost"
    ledger.close()
    assert [found["request_id"] for found in rows(path)] == ["before", "during"]
    assert sum("cannot be written" in message for message in caplog.messages) == 1


def test_full_disk_costs_no_row_once_there_is_room(path, said):
    disk = {"max_pages": 20}

    def connect(path: Path) -> Database:
        database = open_database(path)
        database.execute(f"PRAGMA max_page_count = {disk['max_pages']}")
        return database

    ledger = impatient(path, connect=connect)
    for index in range(500):
        ledger.record(row(f"r{index}", model="m" * 200))
    assert "full" in said("cannot be written")
    disk["max_pages"] = 100_000
    said("written again")
    ledger.close()
    assert [found["request_id"] for found in rows(path)] == [f"r{index}" for index in range(500)]


def test_memory_is_bounded_and_the_loss_is_counted(path, said, monkeypatch):
    monkeypatch.setattr(ledger_module, "MAX_PENDING_ROWS", 3)
    gone = threading.Event()

    def connect(path: Path) -> Database:
        if not gone.is_set():
            raise sqlite3.OperationalError("unable to open database file")
        return open_database(path)

    ledger = impatient(path, connect=connect, first_retry_s=3600.0)  # the next attempt is the one of close
    said("cannot be written")
    for name in "abcde":
        ledger.record(row(name))
    gone.set()
    ledger.close()
    assert [found["request_id"] for found in rows(path)] == ["c", "d", "e"]
    assert said("written again").endswith("2 rows were lost")


def test_folder_that_cannot_be_made_is_a_warning(tmp_path, said):
    (tmp_path / "file").write_text("")
    ledger = impatient(tmp_path / "file" / "ledger.db")
    ledger.record(row())
    said("cannot be written")
    ledger.close()
    assert "1 rows unwritten" in said("closes with")


def test_file_that_is_no_database_is_a_warning(tmp_path, said):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database at all" * 1000)
    ledger = impatient(path)
    said("file is not a database")
    ledger.close()


def test_ledger_of_an_earlier_homeai_is_taken_over(path):
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        new = {"client_request_id", "num_recomputed_tokens", "num_moved_bytes", "key"}
        columns = ", ".join(name for name in LedgerRow.__struct_fields__ if name not in new)
        connection.executescript(
            f"CREATE TABLE requests ({columns}); CREATE TABLE events (at, kind, detail); PRAGMA user_version = 1;"
            "INSERT INTO requests (request_id) VALUES ('old')"
        )
    old, new = written(path, row("new", client_request_id="theirs"))
    assert (old["request_id"], old["client_request_id"]) == ("old", None)
    assert (new["request_id"], new["client_request_id"]) == ("new", "theirs")


def test_ledger_of_a_newer_homeai_is_left_alone(path, said):
    written(path, row("a"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    ledger = Ledger(path, 90)
    ledger.start()
    ledger.record(row("b"))
    message = said("the ledger is off")
    assert "schema 999" in message
    ledger.record(row("c"))
    ledger.close()
    assert len(rows(path)) == 1


# ---- prefix hashes ------------------------------------------------------------------------------------


def test_equal_prefixes_have_equal_hashes_up_to_where_they_part():
    one = prefix_block_hashes([*range(192), 7])
    other = prefix_block_hashes([*range(128), *range(64)])
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_same_block_after_another_beginning_is_another_hash():
    assert prefix_block_hashes([1] * 64 + [5] * 64)[1] != prefix_block_hashes([2] * 64 + [5] * 64)[1]


@pytest.mark.parametrize(("num_tokens", "num_hashes"), [(0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (100_000, 64)])
def test_only_full_blocks_are_hashed_and_a_bounded_number(num_tokens, num_hashes):
    assert len(prefix_block_hashes([1] * num_tokens)) == num_hashes


def test_hash_is_eight_bytes_of_hex_that_stay_the_same():
    assert prefix_block_hashes(list(range(64))) == prefix_block_hashes(list(range(64)))
    assert all(len(bytes.fromhex(found)) == 8 for found in prefix_block_hashes(list(range(128))))
