"""What is kept of batches: each line done once, and what was reported survives (I5)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from homeai.errors import ConfigError
from homeai.server.batches.records import Batch, LineError, LineState, Status, StoredFile, Usage
from homeai.server.batches.store import SCHEMA_VERSION, InUse, Store
from tests.server.batches.factories import NOW, make_batch, make_file, make_places

OK, BAD = LineState.COMPLETED, LineState.FAILED


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """The store, over a new connection each time."""
    stores: list[Store] = []

    def open_again() -> Store:
        stores.append(Store(tmp_path / "batches.db"))
        return stores[-1]

    yield open_again
    for store in stores:
        store.close()


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Store:
    return reopen()


def added(store: Store, num_lines: int = 3, **fields: object) -> Batch:
    batch = make_batch(num_lines=num_lines, **fields)
    store.add_batch(batch, make_places(num_lines))
    return batch


def output(store: Store, file_id: str | None) -> list[bytes]:
    file = store.file(file_id or "")
    assert file is not None
    content, after = b"", 0
    while (part := store.answers(file, after)) is not None:
        content, after = content + part[0], part[1]
    assert len(content) == file.num_bytes
    return content.splitlines()


def test_values_come_back_as_they_were_put(store: Store) -> None:
    file = make_file(expires_at=NOW + 1, filename="nächtlich.jsonl")
    store.add_file(file)
    assert store.file(file.file_id) == file
    batch = added(store, metadata={"a": "ä"}, errors=[LineError("code", "why", 3, "url")], key="k", outputs_kept_s=None)
    assert store.batch(batch.batch_id) == batch
    assert store.place(batch.batch_id, 2) == make_places(3)[1]
    assert (store.file("file-x"), store.batch("batch_x")) == (None, None)


def test_folder_is_the_owners_alone(tmp_path: Path) -> None:
    Store(tmp_path / "batches" / "batches.db").close()
    assert (tmp_path / "batches").stat().st_mode & 0o077 == 0


def test_results_are_synced_to_disk(store: Store) -> None:
    (mode,) = store._database.execute("PRAGMA synchronous").fetchone()
    (journal,) = store._database.execute("PRAGMA journal_mode").fetchone()
    assert (mode, journal) == (2, "wal"), "FULL: what was reported survives a power cut"


def test_line_is_done_once(store: Store) -> None:
    batch = added(store)
    counted = store.finish_line(batch.batch_id, 2, OK, b"first", Usage(5, 4, 3, 2), NOW)
    assert counted is not None
    assert (counted.num_completed, counted.num_failed, counted.status) == (1, 0, Status.IN_PROGRESS)
    assert store.finish_line(batch.batch_id, 2, BAD, b"second", Usage(9), NOW) is None
    assert store.batch(batch.batch_id) == counted
    assert store.open_batches() == [(counted, [1, 3])]


def test_last_line_ends_the_batch_and_makes_its_files(store: Store) -> None:
    batch = added(store)
    for number, state in ((3, OK), (1, BAD), (2, OK)):
        last = store.finish_line(batch.batch_id, number, state, b"answer %d" % number, Usage(10, 1, 2), NOW + number)
    assert last is not None
    assert (last.status, last.num_completed, last.num_failed, last.ended_at) == (Status.COMPLETED, 2, 1, NOW + 2)
    assert (last.num_input_tokens, last.num_cached_tokens, last.num_output_tokens) == (30, 3, 6)
    assert output(store, last.output_file_id) == [b"answer 2", b"answer 3"]
    assert output(store, last.error_file_id) == [b"answer 1"]
    assert store.open_batches() == []
    file = store.file(last.output_file_id or "")
    assert isinstance(file, StoredFile)
    assert (file.owner, file.expires_at) == ("ann", NOW + 102)


def test_batch_without_failures_has_no_error_file(store: Store) -> None:
    batch = added(store, 1)
    last = store.finish_line(batch.batch_id, 1, OK, b"{}", Usage(), NOW)
    assert last is not None
    assert last.error_file_id is None


def test_long_output_is_read_in_parts(store: Store) -> None:
    batch = added(store, 700)
    for number in range(1, 701):
        last = store.finish_line(batch.batch_id, number, OK, str(number).encode(), Usage(), NOW)
    assert last is not None
    assert output(store, last.output_file_id) == [str(number).encode() for number in range(1, 701)]


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED])
def test_what_waits_at_the_end_fails_with_its_reason(store: Store, status: Status) -> None:
    batch = added(store)
    store.finish_line(batch.batch_id, 1, OK, b"answer", Usage(), NOW)
    ended = store.end(batch.batch_id, status, "too_late", 'it was "late"', NOW + 1)
    assert ended is not None
    assert (ended.status, ended.num_completed, ended.num_failed) == (status, 1, 2)
    assert output(store, ended.output_file_id) == [b"answer"]
    assert [json.loads(text) for text in output(store, ended.error_file_id)] == [
        {
            "id": f"batch_req_1_{number}",
            "custom_id": f"r{number}",
            "response": None,
            "error": {"code": "too_late", "message": 'it was "late"'},
        }
        for number in (2, 3)
    ]


def test_batch_that_has_ended_stays_as_it_is(store: Store) -> None:
    batch = added(store)
    ended = store.end(batch.batch_id, Status.CANCELLED, "code", "why", NOW)
    assert store.finish_line(batch.batch_id, 1, OK, b"late", Usage(), NOW) is None
    assert store.end(batch.batch_id, Status.EXPIRED, "code", "why", NOW + 1) == ended
    assert store.end("batch_x", Status.EXPIRED, "code", "why", NOW) is None


def test_all_of_it_is_there_over_a_new_connection(reopen: Callable[[], Store]) -> None:
    first = reopen()
    batch = added(first)
    counted = first.finish_line(batch.batch_id, 1, OK, b"answer", Usage(), NOW)
    assert reopen().open_batches() == [(counted, [2, 3])]


def test_cut_off_transaction_leaves_the_line_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer, counts and end are one."""
    batch = added(store, 1)

    def cut(self: Store, batch: Batch) -> None:
        raise OSError("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "_write", cut)
        with pytest.raises(OSError, match="power"):
            store.finish_line(batch.batch_id, 1, OK, b"answer", Usage(), NOW)
    assert store.open_batches() == [(batch, [1])]
    assert store.files(None, None, None, 10, oldest_first=True) == []


def test_pages_go_on_behind_the_last_and_show_an_owner_its_own(store: Store) -> None:
    for i, owner in enumerate(["ann", "bob", "ann", "ann"]):
        store.add_file(make_file(f"file-{i}", owner=owner))
        store.add_batch(make_batch(f"batch_{i}", owner=owner), [])
    files = store.files("ann", "batch", None, 2, oldest_first=False)
    assert [file.file_id for file in files] == ["file-3", "file-2"]
    assert [f.file_id for f in store.files("ann", "batch", "file-2", 2, oldest_first=False)] == ["file-0"]
    assert [f.file_id for f in store.files(None, None, "file-0", 2, oldest_first=True)] == ["file-1", "file-2"]
    assert [batch.batch_id for batch in store.batches("ann", "batch_3", 9)] == ["batch_2", "batch_0"]
    assert [batch.batch_id for batch in store.batches(None, None, 2)] == ["batch_3", "batch_2"]


def test_input_stays_as_long_as_its_batch_runs(store: Store) -> None:
    file = make_file()
    store.add_file(file)
    batch = added(store)
    with pytest.raises(InUse):
        store.remove_file(file)
    assert store.prune(NOW + 1e12, float("-inf")) == []
    store.end(batch.batch_id, Status.CANCELLED, "code", "why", NOW)
    store.remove_file(file)
    assert store.uploaded_ids() == set()


def test_output_that_is_deleted_takes_its_answers_with_it(store: Store) -> None:
    batch = added(store, 1)
    last = store.finish_line(batch.batch_id, 1, OK, b"answer", Usage(), NOW)
    assert last is not None
    file = store.file(last.output_file_id or "")
    assert file is not None
    store.remove_file(file)
    assert (store.file(file.file_id), store.answers(file, 0)) == (None, None)


def test_old_files_and_batches_are_forgotten(store: Store) -> None:
    store.add_file(make_file("file-old", expires_at=NOW + 10))
    store.add_file(make_file("file-kept", expires_at=NOW + 20))
    store.add_file(make_file("file-forever"))
    batch = added(store, 1)
    last = store.finish_line(batch.batch_id, 1, OK, b"answer", Usage(), NOW)
    assert last is not None
    assert store.prune(NOW + 10, NOW) == ["file-old"]
    assert store.batch(batch.batch_id) == last
    assert store.prune(NOW + 10, NOW + 1) == []
    assert store.batch(batch.batch_id) is None
    assert store.uploaded_ids() == {"file-kept", "file-forever"}
    assert store.file(last.output_file_id or "") is None
    (num_lines,) = store._database.execute("SELECT COUNT(*) FROM lines").fetchone()
    assert num_lines == 0


def test_stored_bytes_are_those_of_uploads(store: Store) -> None:
    assert store.num_uploaded_bytes() == 0
    store.add_file(make_file("file-1", num_bytes=5))
    store.add_file(make_file("file-2", num_bytes=7, batch_id="batch_1"))
    assert store.num_uploaded_bytes() == 5


def test_file_of_a_newer_homeai_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "batches.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(ConfigError, match=f"schema {SCHEMA_VERSION + 1} > {SCHEMA_VERSION}"):
        Store(path)


def test_every_field_has_its_column(store: Store) -> None:
    for table, kind in (("files", StoredFile), ("batches", Batch)):
        columns = {column.name for column in store._database.table(table).columns}
        assert columns == {field.name for field in msgspec.structs.fields(kind)}
