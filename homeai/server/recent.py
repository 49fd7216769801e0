"""The last requests, with where their time went and who was in the way. Numbers and names, never any text.

    arrival ── queued ── first step ── prefill ── first token ── decode ── end
                                          └───── parked ─────┘  (taken out of both)

Pure: what it knows comes with each end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from homeai.request import FinishReason
from homeai.server.generation import Generation, Record
from homeai.status import InTheWay, RecentRequest

MAX_RECENT: Final = 40
MAX_RUNS: Final = 256  # of ended requests: who ran when
MAX_IN_THE_WAY: Final = 4
LEAST_S: Final = 0.05  # for so short a time nobody is in the way


class _Run(NamedTuple):
    """It was in the engine. Instants are CLOCK_MONOTONIC."""

    source: str
    fairness_class: str
    started_at: float
    ended_at: float


class Recent:
    def __init__(self) -> None:
        self._requests: deque[RecentRequest] = deque(maxlen=MAX_RECENT)
        self._runs: deque[_Run] = deque(maxlen=MAX_RUNS)
        self.num_ended = 0  # since the start

    @property
    def requests(self) -> list[RecentRequest]:
        """The latest first."""
        return list(reversed(self._requests))

    def ended(self, record: Record, live: Iterable[Generation], *, status: int, at: float) -> None:
        """`live`: what has not ended yet. `at`: Unix time."""
        generation, end = record.generation, record.ended_at
        add = generation.add
        runs = [*self._runs, *(run for other in live if other is not generation and (run := _run(other, end)))]
        self._requests.append(
            RecentRequest(
                id=add.request_id,
                source=add.source,
                fairness_class=add.fairness_class,
                api=generation.api,
                ended_at=at,
                status=status,
                finish_reason=record.finish_reason,
                problem=_problem(record),
                num_prompt_tokens=len(add.prompt_token_ids),
                num_cached_tokens=generation.num_cached_tokens,
                num_output_tokens=generation.num_output_tokens,
                num_recomputed_tokens=record.finished.num_recomputed_tokens if record.finished else 0,
                num_preemptions=record.finished.num_preemptions if record.finished else 0,
                wait_reason=generation.waited_for,
                in_the_way=in_the_way(add.arrival_at, generation.started_at, end, runs),
                **parts_s(record),
            )
        )
        self.num_ended += 1
        if (own := _run(generation, end)) is not None:
            self._runs.append(own)


def parts_s(record: Record) -> dict[str, float]:
    """Where the time between arrival and end went; together they are all of it."""
    generation, finished, end = record.generation, record.finished, record.ended_at
    arrival = generation.add.arrival_at
    started = generation.started_at if generation.started_at is not None else end
    first = generation.first_token_at if generation.first_token_at is not None else end
    parked = finished.parked_s if finished else 0.0
    parked_before = finished.prefill_parked_s if finished and generation.first_token_at is not None else parked
    prefill = max(0.0, first - started - parked_before)
    decode = max(0.0, end - first - (parked - parked_before))
    queued = max(0.0, started - arrival)
    return {
        "queued_s": round(queued, 4),
        "prefill_s": round(prefill, 4),
        "parked_s": round(parked, 4),
        "decode_s": round(decode, 4),
    }


def in_the_way(arrival_at: float, started_at: float | None, ended_at: float, runs: Iterable[_Run]) -> list[InTheWay]:
    """Who ran while it waited, and who beside it; those first who ran longest while it waited."""
    began = ended_at if started_at is None else started_at
    spans: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        if run.ended_at > arrival_at:
            spans[run.source, run.fairness_class].append((run.started_at, run.ended_at))
    found = [
        InTheWay(*who, _overlap_s(arrival_at, began, their), _overlap_s(began, ended_at, their))
        for who, their in spans.items()
    ]
    found = [other for other in found if other.ahead_s + other.beside_s >= LEAST_S]
    return sorted(found, key=lambda other: (-other.ahead_s, -other.beside_s))[:MAX_IN_THE_WAY]


def _overlap_s(begin: float, end: float, spans: list[tuple[float, float]]) -> float:
    """How much of [begin, end) any of them covers."""
    covered, reached = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            covered, reached = covered + stop - start, stop
    return round(covered, 3)


def _run(generation: Generation, now: float) -> _Run | None:
    add = generation.add
    return None if generation.started_at is None else _Run(add.source, add.fairness_class, generation.started_at, now)


def _problem(record: Record) -> str | None:
    if record.error is not None:
        return record.error.code or record.error.type
    return "the client left" if record.finish_reason is FinishReason.ABORT else None
