"""What is written down of a request: once, whatever became of it."""

from __future__ import annotations

import time

import msgspec
import pytest

from homeai.errors import EngineDied, QueueTimeout, RequestError, TooManyRequests
from homeai.ledger import prefix_block_hashes
from homeai.messages import Finished
from homeai.metrics import Metrics
from homeai.request import FinishReason
from homeai.server.books import Books
from homeai.server.generation import Generation, Record
from homeai.server.sources import Identity
from tests.server.fakes import STATS, FakeLedger, make_add

ARRIVAL_AT = 100.0
ENGINE = Finished("a", FinishReason.STOP, 101.0, 102.5, 5, 2, 0.25, num_cached_tokens=64)


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


@pytest.fixture
def books(ledger: FakeLedger) -> Books:
    books = Books(Metrics(), ledger)
    books.model_name = "gemma"
    return books


def make_record(
    reason: FinishReason = FinishReason.STOP, error: RequestError | None = None, engine: Finished | None = ENGINE
) -> Record:
    add = msgspec.structs.replace(make_add("a", num_prompt_tokens=130), arrival_at=ARRIVAL_AT)
    generation = Generation(add, "/v1/completions", "theirs", num_output_tokens=5, num_cached_tokens=64)
    return Record(generation, reason, error, ARRIVAL_AT + 4.0, engine)


def test_row_has_the_engine_s_instants_as_durations(books: Books, ledger: FakeLedger) -> None:
    before = time.time()
    books.finished(make_record())
    (row,) = ledger.rows
    assert (row.queue_s, row.ttft_s, row.e2e_s) == (1.0, 2.5, 4.0)
    assert (row.parked_s, row.num_preemptions) == (0.25, 2)
    assert (row.num_prompt_tokens, row.num_cached_tokens, row.num_output_tokens) == (130, 64, 5)
    assert (row.request_id, row.client_request_id) == ("a", "theirs")
    assert (row.api, row.model) == ("/v1/completions", "gemma")
    assert (row.source, row.fairness_class) == ("kitchen", "interactive")
    assert row.prefix_hashes == prefix_block_hashes(list(range(130)))
    assert before - 4.0 <= row.arrival <= time.time() - 4.0


@pytest.mark.parametrize(
    ("reason", "error", "status"),
    [
        (FinishReason.STOP, None, 200),
        (FinishReason.LENGTH, None, 200),
        (FinishReason.ABORT, None, 499),
        (FinishReason.TIMEOUT, QueueTimeout("too long"), 503),
        (FinishReason.ERROR, EngineDied("gone"), 503),
        (FinishReason.ERROR, RequestError("a bug"), 500),
    ],
)
def test_status_is_what_the_client_got(
    books: Books, ledger: FakeLedger, reason: FinishReason, error: RequestError | None, status: int
) -> None:
    books.finished(make_record(reason, error))
    assert [(row.status, row.finish_reason) for row in ledger.rows] == [(status, reason)]
    assert (books.totals.finished, books.totals.failed) == ((0, 1) if status >= 500 else (1, 0))


def test_request_of_an_engine_that_did_not_live_to_tell_has_its_row_too(books: Books, ledger: FakeLedger) -> None:
    books.finished(make_record(FinishReason.ERROR, EngineDied("gone"), engine=None))
    (row,) = ledger.rows
    assert (row.queue_s, row.ttft_s, row.num_output_tokens) == (None, None, 5)


def test_rejected_request_has_a_row_with_its_reason(books: Books, ledger: FakeLedger) -> None:
    books.rejected("r", "/v1/completions", Identity("kitchen", "voice"), 1e9, TooManyRequests("full"))
    (row,) = ledger.rows
    assert (row.request_id, row.arrival, row.source, row.fairness_class) == ("r", 1e9, "kitchen", "voice")
    assert (row.status, row.reject_reason, row.finish_reason) == (429, "rate_limit_exceeded", None)
    assert books.totals.rejected == 1


def test_steps_add_up(books: Books) -> None:
    parked = msgspec.structs.replace(STATS, num_preemptions=2, out_of_room=True)
    for stats in (STATS, parked, parked):
        books.stepped(stats)
    assert (books.totals.preemptions, books.totals.out_of_room) == (4, 2)


def test_without_a_ledger_only_the_totals_are_kept() -> None:
    books = Books(Metrics(), None)
    books.finished(make_record())
    books.rejected("r", "/x", Identity("kitchen", "voice"), 0.0, TooManyRequests("full"))
    books.event("state", "resident")
    assert (books.totals.finished, books.totals.rejected) == (1, 1)


def test_events_are_kept(books: Books, ledger: FakeLedger) -> None:
    books.event("state", "resident")
    assert ledger.events == [("state", "resident")]
