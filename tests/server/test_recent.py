"""Where the time of a request went, and who was in the way."""

from __future__ import annotations

import msgspec
import pytest

from homeai.errors import QueueTimeout
from homeai.messages import AddRequest, Finished
from homeai.request import FinishReason, WaitReason
from homeai.server.generation import Generation, Record
from homeai.server.recent import MAX_IN_THE_WAY, MAX_RECENT, Recent
from homeai.status import InTheWay, RecentRequest
from tests.server.fakes import make_add


def generation(
    source: str = "kitchen",
    fairness_class: str = "interactive",
    *,
    arrival: float = 0.0,
    started: float | None = None,
    first: float | None = None,
) -> Generation:
    add: AddRequest = msgspec.structs.replace(make_add("a", fairness_class), source=source, arrival_at=arrival)
    return Generation(add, "/v1/chat/completions", started_at=started, first_token_at=first, num_output_tokens=5)


def record(generation: Generation, end: float, *, parked: float = 0.0, parked_before: float = 0.0) -> Record:
    finished = Finished("a", FinishReason.STOP, None, None, 5, int(parked > 0), parked, prefill_parked_s=parked_before)
    return Record(generation, FinishReason.STOP, None, end, finished)


def ended(recent: Recent, record: Record, *live: Generation) -> RecentRequest:
    recent.ended(record, live, status=200, at=1000.0)
    return recent.requests[0]


def parts(request: RecentRequest) -> tuple[float, float, float, float]:
    return request.queued_s, request.prefill_s, request.parked_s, request.decode_s


@pytest.mark.parametrize(
    ("started", "first", "parked", "parked_before", "expected"),
    [
        (1.0, 3.0, 0.0, 0.0, (1.0, 2.0, 0.0, 7.0)),
        (1.0, 5.0, 3.0, 2.0, (1.0, 2.0, 3.0, 4.0)),  # set aside before and after its first token
        (1.0, None, 4.0, 0.0, (1.0, 5.0, 4.0, 0.0)),  # the first token never came
        (None, None, 0.0, 0.0, (10.0, 0.0, 0.0, 0.0)),  # nor did its turn
    ],
)
def test_the_parts_of_its_life_are_all_of_it(
    started: float | None,
    first: float | None,
    parked: float,
    parked_before: float,
    expected: tuple[float, float, float, float],
) -> None:
    request = ended(
        Recent(), record(generation(started=started, first=first), 10.0, parked=parked, parked_before=parked_before)
    )
    assert parts(request) == expected
    assert sum(parts(request)) == 10.0


def ran(source: str, *spans: tuple[float, float], since: float | None = None, arrival: float = 0.0) -> Generation:
    """It was in the batch then, or is since."""
    made = generation(source, arrival=arrival, started=spans[0][0] if spans else since)
    made.ran, made.ran_since = list(spans), since
    return made


def test_who_ran_while_it_waited_and_who_beside_it() -> None:
    recent = Recent()
    ended(recent, record(ran("desk", (0.0, 4.0)), 4.0))
    live = ran("night", since=2.5), generation("phone")
    request = ended(recent, record(ran("kitchen", (5.0, 8.0), arrival=1.0), 8.0), *live)
    assert request.in_the_way == [
        InTheWay("desk", "interactive", 3.0, 0.0),  # from its arrival to desk's end
        InTheWay("night", "interactive", 2.5, 3.0),
    ]


def test_who_is_set_aside_is_in_nobody_s_way() -> None:
    live = ran("night", (0.0, 2.0), (6.0, 7.0))
    request = ended(Recent(), record(ran("kitchen", (4.0, 8.0), arrival=1.0), 8.0), live)
    assert request.in_the_way == [InTheWay("night", "interactive", 1.0, 1.0)]


def test_who_ran_while_it_was_set_aside_was_in_the_way() -> None:
    live = ran("voice", since=3.0)
    request = ended(Recent(), record(ran("desk", (0.0, 3.0), (5.0, 6.0)), 6.0), live)
    assert request.in_the_way == [InTheWay("voice", "interactive", 2.0, 1.0)]


def test_time_counts_once_however_many_of_a_source_ran() -> None:
    recent = Recent()
    for started in (0.0, 1.0, 2.5):
        ended(recent, record(ran("desk", (started, started + 2.0)), started + 2.0))
    request = ended(recent, record(ran("kitchen", (5.0, 6.0)), 6.0))
    assert request.in_the_way == [InTheWay("desk", "interactive", 4.5, 0.0)]


def test_nobody_is_in_the_way_who_ran_before_or_after_it() -> None:
    recent = Recent()
    ended(recent, record(ran("desk", (0.0, 1.0)), 1.0))
    request = ended(recent, record(ran("kitchen", (1.0, 2.0), arrival=1.0), 2.0))
    assert request.in_the_way == []


def test_most_in_the_way_come_first_and_are_few() -> None:
    live = [ran(f"s{i}", since=float(i)) for i in range(2 * MAX_IN_THE_WAY)]
    request = ended(Recent(), record(ran("kitchen", (20.0, 21.0)), 21.0), *live)
    assert [other.source for other in request.in_the_way] == [f"s{i}" for i in range(MAX_IN_THE_WAY)]


def test_reason_it_waited_for_and_what_ended_it_are_told() -> None:
    waiting = generation()
    waiting.waited_for = WaitReason.SEQUENCE_SLOT
    error = QueueTimeout("waited 10 s", retry_after_s=1.0)
    request = ended(Recent(), Record(waiting, FinishReason.TIMEOUT, error, 10.0, None))
    assert (request.wait_reason, request.problem) == ("sequence_slot", error.code or error.type)
    left = ended(Recent(), Record(generation(started=1.0), FinishReason.ABORT, None, 2.0, None))
    assert left.problem == "the client left"


def test_only_the_last_ones_are_kept() -> None:
    recent = Recent()
    for end in range(MAX_RECENT + 5):
        ended(recent, record(generation(started=0.0, first=0.0), float(end)))
    assert len(recent.requests) == MAX_RECENT
    assert recent.requests[0].decode_s == MAX_RECENT + 4
    assert recent.num_ended == MAX_RECENT + 5
