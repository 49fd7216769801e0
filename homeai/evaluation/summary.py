"""What a run was like, in numbers: latencies by class, throughput, waste, fairness. Pure.

Percentiles are by nearest rank, as the bench's load generator computes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from homeai.evaluation.records import Owner, RequestRecord, Run, StepRecord
from homeai.request import FinishReason

COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)


class ClassSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; None where nothing of the kind happened. tpot: mean time per token after a request's first.

    itl: between two tokens of a stream. share, weight_share: of the service while the class and another one were
    backlogged, what it got and what its weight promises.
    """

    num_requests: int
    num_completed: int
    num_cancelled: int
    num_timed_out: int
    num_refused: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    ttft_p50: float | None
    ttft_p95: float | None
    tpot_p50: float | None
    itl_p95: float | None
    itl_max: float | None
    e2e_p95: float | None
    queue_p95: float | None
    parked_s: float
    share: float | None
    weight_share: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """wasted_row_steps: slots of the batch that a step left empty while somebody waited.

    jain: Jain's index of the weighted service of backlogged sources, 1 when each got what its weight promises.
    num_recomputed_tokens: lost when somebody was parked, and computed again.
    """

    wall_s: float
    num_output_tokens: int
    tokens_per_s: float
    requests_per_s: float
    num_steps: int
    mean_rows: float
    busy: float  # part of the time in which a step ran
    num_preemptions: int
    num_cached_tokens: int
    num_recomputed_tokens: int
    wasted_row_steps: int
    jain: float | None
    overall: ClassSummary
    classes: dict[str, ClassSummary]


def summarise(run: Run, class_weights: Mapping[str, float]) -> Summary:
    by_class: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in run.requests:
        by_class[record.fairness_class].append(record)
    service = _weigh(run.steps, class_weights)
    num_tokens = sum(len(r.token_times) for r in run.requests)
    num_completed = sum(r.finish_reason in COMPLETE for r in run.requests)
    wall_s = max(run.wall_s, 1e-9)
    return Summary(
        wall_s=run.wall_s,
        num_output_tokens=num_tokens,
        tokens_per_s=num_tokens / wall_s,
        requests_per_s=num_completed / wall_s,
        num_steps=len(run.steps),
        mean_rows=sum(s.num_rows for s in run.steps) / max(1, len(run.steps)),
        busy=sum(s.step_s for s in run.steps) / wall_s,
        num_preemptions=sum(r.num_preemptions for r in run.requests),
        num_cached_tokens=sum(r.num_cached_tokens for r in run.requests),
        num_recomputed_tokens=sum(r.num_recomputed_tokens for r in run.requests),
        wasted_row_steps=sum(s.num_idle_rows for s in run.steps),
        jain=service.jain(),
        overall=_of_class(run.requests, None, None),
        classes={name: _of_class(by_class[name], *service.shares(name)) for name in sorted(by_class)},
    )


def _of_class(requests: Sequence[RequestRecord], share: float | None, weight_share: float | None) -> ClassSummary:
    """Cancelled requests count for the first token and the gaps, not for the end."""
    complete = [r for r in requests if r.finish_reason in COMPLETE]
    gaps = [later - sooner for r in requests for sooner, later in pairwise(r.token_times)]
    ttfts = [r.first_token_at - r.arrival_at for r in requests if r.first_token_at is not None]
    tpots = [(r.token_times[-1] - r.token_times[0]) / (len(r.token_times) - 1) for r in complete if r.token_times[1:]]
    return ClassSummary(
        num_requests=len(requests),
        num_completed=len(complete),
        num_cancelled=sum(r.finish_reason is FinishReason.ABORT for r in requests),
        num_timed_out=sum(r.finish_reason is FinishReason.TIMEOUT for r in requests),
        num_refused=sum(r.finish_reason is None for r in requests),
        num_output_tokens=sum(len(r.token_times) for r in requests),
        num_cached_tokens=sum(r.num_cached_tokens for r in requests),
        num_preemptions=sum(r.num_preemptions for r in requests),
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        tpot_p50=percentile(tpots, 50),
        itl_p95=percentile(gaps, 95),
        itl_max=max(gaps, default=None),
        e2e_p95=percentile([r.finished_at - r.arrival_at for r in complete if r.finished_at is not None], 95),
        queue_p95=percentile([r.admitted_at - r.arrival_at for r in requests if r.admitted_at is not None], 95),
        parked_s=sum(r.parked_s for r in requests),
        share=share,
        weight_share=weight_share,
    )


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The value of nearest rank, None without any."""
    ordered = sorted(values)
    return ordered[round(percent / 100 * (len(ordered) - 1))] if ordered else None


# ---- fairness ------------------------------------------------------------------------------------------


class _Service:
    """What backlogged owners got, and what was due to them, while somebody else was backlogged too."""

    def __init__(self) -> None:
        self.got: dict[Owner, float] = defaultdict(float)
        self.due: dict[Owner, float] = defaultdict(float)

    def jain(self) -> float | None:
        """(Σx)² / (n · Σx²) of x = got / due (Jain et al., 1984), each owner counting as much as was due to it.

        Who waited for a moment does not weigh like who waited all along. None when nobody ever competed.
        """
        total = sum(self.due.values())
        squares = sum(self.got[owner] ** 2 / due for owner, due in self.due.items() if due > 0)
        return sum(self.got[owner] for owner in self.due) ** 2 / (total * squares) if squares else None

    def shares(self, fairness_class: str) -> tuple[float | None, float | None]:
        """Of `fairness_class`: the part it got of all competed-for service, and the part that was due."""
        total = sum(self.due.values())
        mine = [owner for owner in self.due if owner[0] == fairness_class]
        if not total or not mine:
            return None, None
        return sum(self.got[owner] for owner in mine) / total, sum(self.due[owner] for owner in mine) / total


def _weigh(steps: Iterable[StepRecord], class_weights: Mapping[str, float]) -> _Service:
    """In each step, what the backlogged owners got together was due to them by weight.

    Classes share by weight, the sources of one class equally.
    """
    service = _Service()
    for step in steps:
        if len(step.backlogged) < 2:
            continue
        num_sources: dict[str, int] = defaultdict(int)
        for fairness_class, _ in step.backlogged:
            num_sources[fairness_class] += 1
        total_weight = sum(class_weights.get(name, 1.0) for name in num_sources)
        total = sum(step.service.get(owner, 0.0) for owner in step.backlogged)
        for owner in step.backlogged:
            weight = class_weights.get(owner[0], 1.0) / num_sources[owner[0]]
            service.got[owner] += step.service.get(owner, 0.0)
            service.due[owner] += total * weight / total_weight
    return service
