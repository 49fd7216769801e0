"""The last requests, with where their time went and who was in the way. Numbers and names, never any text.

    arrival ── queued ── first step ── prefill ── first token ── decode ── end
                                          └───── parked ─────┘  (taken out of both)

Pure: what it knows comes with each end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from homeai.request import FinishReason
from homeai.server.generation import Generation, Record
from homeai.status import InTheWay, RecentRequest

MAX_RECENT: Final = 40
MAX_RUNS: Final = 256  # of ended requests: who ran when
MAX_IN_THE_WAY: Final = 4
LEAST_S: Final = 0.05  # for so short a time nobody is in the way

Span = tuple[float, float]  # CLOCK_MONOTONIC


class _Run(NamedTuple):
    """A source's request was in the batch for a while."""

    source: str
    fairness_class: str
    span: Span


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
        others = [run for other in live if other is not generation for run in _runs_of(other, end)]
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
                in_the_way=in_the_way(add.arrival_at, end, generation.ran, [*self._runs, *others]),
                **parts_s(record),
            )
        )
        self.num_ended += 1
        self._runs.extend(_runs_of(generation, end))


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


def in_the_way(arrival_at: float, ended_at: float, ran: Sequence[Span], others: Iterable[_Run]) -> list[InTheWay]:
    """Who was in the batch while it was not, and who beside it; those first who were there longest without it."""
    spans: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for run in others:
        if run.span[1] > arrival_at:
            spans[run.source, run.fairness_class].append(run.span)
    waited = _gaps(arrival_at, ended_at, ran)
    found = [InTheWay(*who, _overlap_s(waited, theirs), _overlap_s(ran, theirs)) for who, theirs in spans.items()]
    found = [other for other in found if other.ahead_s + other.beside_s >= LEAST_S]
    return sorted(found, key=lambda other: (-other.ahead_s, -other.beside_s))[:MAX_IN_THE_WAY]


def _gaps(begin: float, end: float, spans: Sequence[Span]) -> list[Span]:
    """What of [begin, end) is in none of them; they are in order."""
    edges = [begin, *(edge for span in spans for edge in span), end]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if stop > start]


def _overlap_s(spans: Sequence[Span], theirs: Sequence[Span]) -> float:
    """How much of the first ones any of the others covers; the first ones are apart."""
    covered = 0.0
    for begin, end in spans:
        reached = begin
        for start, stop in sorted(theirs):
            gained = min(stop, end) - max(start, reached)
            if gained > 0:
                covered, reached = covered + gained, min(stop, end)
    return round(covered, 3)


def _runs_of(generation: Generation, now: float) -> list[_Run]:
    spans = [*generation.ran, *([] if generation.ran_since is None else [(generation.ran_since, now)])]
    return [_Run(generation.add.source, generation.add.fairness_class, span) for span in spans]


def _problem(record: Record) -> str | None:
    if record.error is not None:
        return record.error.code or record.error.type
    return "the client left" if record.finish_reason is FinishReason.ABORT else None
