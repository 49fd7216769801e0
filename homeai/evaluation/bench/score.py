"""A play in figures. Pure; latencies and fairness are the simulator's own summary of the same records.

Seconds, bytes, tokens; None where something cannot be read, or did not happen. The client sees only when tokens come:
a prompt's service is spread evenly from when it was sent to its first token, in slices of a second, and a source is
backlogged in a slice in which one of its requests waits for its first token all along.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Final, TypeVar

import msgspec

from homeai.evaluation.bench.overlap import overlap_share
from homeai.evaluation.bench.records import CallRecord, Ending, Play, Reading
from homeai.evaluation.records import Owner, RequestRecord, Run, StepRecord
from homeai.evaluation.summary import ClassSummary, percentile, summarise
from homeai.request import FinishReason, Mode

SLICE_S: Final = 1.0
UNATTENDED: Final = "background"  # the class that nobody sits and waits for
OUTPUT_WEIGHT: Final = 2.0

S = TypeVar("S", bound=msgspec.Struct)


class Prices(msgspec.Struct, frozen=True):
    """`kwh`: of electricity. `hour`: of the machine, rented or written off. `watts`: where it does not tell itself."""

    kwh: float | None = None
    hour: float | None = None
    watts: float | None = None
    currency: str = "EUR"


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Of one class or group, or of all calls that somebody waits for."""

    num_calls: float
    num_completed: float
    ttft_p50: float | None
    ttft_p95: float | None
    tpot_p50: float | None
    itl_p95: float | None
    e2e_p50: float | None
    e2e_p95: float | None
    share: float | None = None
    weight_share: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one play. `overlap`: part of the time with work in which it was more than one request's.

    `busy`: part of the time in which the engine computed; `_1` and `_2` are the play's halves. `kv_peak`: of the cells,
    those in use by running requests. `cost`: of one accepted answer, in the prices' currency.
    """

    wall_s: float
    offered_rps: float
    completed_rps: float
    tokens_per_s: float
    num_rejected: float
    num_failed: float
    num_cancelled: float
    num_retries: float
    error_rate: float
    overlap: float
    cached: float | None
    queue_p95: float | None
    lateness_p95: float | None
    jain: float | None
    num_preemptions: float | None
    num_preemptions_2: float | None
    num_evictions: float | None
    num_out_of_room: float | None
    num_recomputed_tokens: float | None
    num_idle_rows: float | None
    num_restarts: float | None
    kv_peak: float | None
    rss_peak: float | None
    gpu_peak: float | None
    utilisation: float | None
    utilisation_1: float | None
    utilisation_2: float | None
    tokens_per_s_1: float
    tokens_per_s_2: float
    busy: float | None
    busy_s_per_answer: float | None
    joules_per_token: float | None
    cost: float | None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """`attended`: of all classes but background. `ttfts` by class, for their distribution.

    `phases`: median TTFT of attended calls sent before, during and after the spike.
    """

    figures: Figures
    attended: Latencies
    classes: dict[str, Latencies]
    groups: dict[str, Latencies]
    phases: list[float | None] = []
    reasons: dict[str, int] = {}


def score(
    play: Play,
    *,
    offered_s: float,
    weights: Mapping[str, float],
    prices: Prices | None = None,
    spike: tuple[float, float] | None = None,
    reasons: Mapping[str, int] | None = None,
) -> Score:
    """`offered_s`: how long the trace offered calls. `spike`: begin and end of the spike in it."""
    records = play.records
    run = _as_run(play)
    summary = summarise(run, weights)
    attended = [record for record in records if record.fairness_class != UNATTENDED]
    return Score(
        figures=_figures(play, offered_s, summary.jain, prices or Prices()),
        attended=_latencies(attended or records),
        classes={
            name: _latencies([r for r in records if r.fairness_class == name], summary.classes[name])
            for name in sorted(summary.classes)
        },
        groups={
            name: _latencies([r for r in records if r.group == name]) for name in sorted({r.group for r in records})
        },
        phases=_phases(attended or records, spike) if spike else [],
        reasons=dict(reasons or {}),
    )


def median_of(scores: Sequence[Score]) -> Score:
    """Field by field, of several rounds; a class or group is kept when every round has it."""
    first = scores[0]
    phases = [_median(values) for values in zip(*(each.phases for each in scores), strict=True)]
    return Score(
        figures=_medians([each.figures for each in scores]),
        attended=_medians([each.attended for each in scores]),
        classes={name: _medians([each.classes[name] for each in scores]) for name in _common(scores, "classes")},
        groups={name: _medians([each.groups[name] for each in scores]) for name in _common(scores, "groups")},
        phases=phases,
        reasons=first.reasons,
    )


# ---- figures -------------------------------------------------------------------------------------------


def _figures(play: Play, offered_s: float, jain: float | None, prices: Prices) -> Figures:
    records, counters, readings = play.records, play.counters, play.readings
    wall_s = max(play.wall_s, 1e-9)
    num_tokens = sum(record.num_output_tokens for record in records)
    num_accepted = sum(record.ending is Ending.COMPLETED for record in records)
    num_rejected, num_failed = _count(records, Ending.REJECTED), _count(records, Ending.FAILED)
    joules = counters.joules
    if joules is None and prices.watts is not None:
        joules = prices.watts * wall_s
    queues = [record.queue_s for record in records if record.queue_s is not None]
    first, second = _halves(readings, play.wall_s)
    peak = max((r.kv_used - r.kv_kept for r in readings if r.kv_used is not None), default=None)
    num_cells = next((r.kv_total for r in readings if r.kv_total), None)
    prompts = [r for r in records if r.num_cached_tokens is not None and r.num_prompt_tokens]
    return Figures(
        wall_s=wall_s,
        offered_rps=len(records) / max(offered_s, 1e-9) if offered_s else len(records) / wall_s,
        completed_rps=num_accepted / wall_s,
        tokens_per_s=num_tokens / wall_s,
        num_rejected=num_rejected,
        num_failed=num_failed,
        num_cancelled=_count(records, Ending.CANCELLED),
        num_retries=sum(record.num_attempts - 1 for record in records),
        error_rate=(num_rejected + num_failed) / max(1, len(records)),
        overlap=overlap_share([(r.sent_at, r.ended_at) for r in records if r.ending is not Ending.REJECTED]),
        cached=_ratio(sum(r.num_cached_tokens or 0 for r in prompts), sum(r.num_prompt_tokens for r in prompts)),
        queue_p95=percentile(queues, 95) if queues else counters.queue_p95_s,
        lateness_p95=percentile([r.sent_at - r.due_at for r in records], 95),
        jain=jain,
        num_preemptions=counters.num_preemptions,
        num_preemptions_2=_gained(second),
        num_evictions=counters.num_evictions,
        num_out_of_room=counters.num_out_of_room,
        num_recomputed_tokens=counters.num_recomputed_tokens,
        num_idle_rows=counters.num_idle_rows,
        num_restarts=counters.num_loads,
        kv_peak=_ratio(peak, num_cells),
        rss_peak=max((r.rss_bytes for r in readings if r.rss_bytes is not None), default=None),
        gpu_peak=max((r.gpu_bytes for r in readings if r.gpu_bytes is not None), default=None),
        utilisation=_utilisation(readings),
        utilisation_1=_utilisation(first),
        utilisation_2=_utilisation(second),
        tokens_per_s_1=_pieces(records, 0.0, wall_s / 2) / (wall_s / 2),
        tokens_per_s_2=_pieces(records, wall_s / 2, math.inf) / (wall_s / 2),
        busy=_ratio(counters.busy_s, wall_s),
        busy_s_per_answer=_ratio(counters.busy_s, num_accepted),
        joules_per_token=_ratio(joules, num_tokens),
        cost=cost_of(prices, joules, wall_s, num_accepted),
    )


def cost_of(prices: Prices, joules: float | None, wall_s: float, num_accepted: int) -> float | None:
    """Of one accepted answer: all that was spent, idle time and retries too, over the answers that came whole.

    None without prices, or when electricity is priced but neither measured nor stated.
    """
    if not num_accepted or (prices.kwh is None and prices.hour is None):
        return None
    if prices.kwh is not None and joules is None:
        return None
    electricity = (prices.kwh or 0.0) * (joules or 0.0) / 3.6e6
    return (electricity + (prices.hour or 0.0) * wall_s / 3600) / num_accepted


def _latencies(records: Sequence[CallRecord], shares: ClassSummary | None = None) -> Latencies:
    """Cancelled calls count for the first token and the gaps, not for the end."""
    complete = [r for r in records if r.ending is Ending.COMPLETED]
    ttfts = [r.ttft_s for r in records if r.ttft_s is not None]
    e2es = [r.ended_at - r.sent_at for r in complete]
    gaps = [later - sooner for r in records for sooner, later in pairwise(r.token_times)]
    tpots = [
        (r.token_times[-1] - r.token_times[0]) / (r.num_output_tokens - 1)
        for r in complete
        if r.token_times and r.num_output_tokens > 1
    ]
    return Latencies(
        num_calls=len(records),
        num_completed=len(complete),
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        tpot_p50=percentile(tpots, 50),
        itl_p95=percentile(gaps, 95),
        e2e_p50=percentile(e2es, 50),
        e2e_p95=percentile(e2es, 95),
        share=shares.share if shares else None,
        weight_share=shares.weight_share if shares else None,
    )


def _phases(records: Sequence[CallRecord], spike: tuple[float, float]) -> list[float | None]:
    """Who was sent away, or still waits, counts with the time that he waited."""

    def waited(record: CallRecord) -> float:
        return record.ttft_s if record.ttft_s is not None else record.ended_at - record.sent_at

    begin, end = spike
    windows = ((-math.inf, begin), (begin, end), (end, math.inf))
    return [percentile([waited(r) for r in records if low <= r.due_at < high], 50) for low, high in windows]


def _halves(readings: Sequence[Reading], wall_s: float) -> tuple[list[Reading], list[Reading]]:
    return [r for r in readings if r.at < wall_s / 2], [r for r in readings if r.at >= wall_s / 2]


def _gained(readings: Sequence[Reading]) -> int | None:
    """Preemptions between the first and the last of these."""
    known = [r.num_preemptions for r in readings if r.num_preemptions is not None]
    return known[-1] - known[0] if known else None


def _utilisation(readings: Iterable[Reading]) -> float | None:
    known = [r.utilisation for r in readings if r.utilisation is not None]
    return mean(known) if known else None


def _pieces(records: Iterable[CallRecord], begin: float, end: float) -> float:
    """Tokens that came in that time. A piece of text may hold several: a call's are spread over its pieces."""
    return sum(
        sum(begin <= at < end for at in r.token_times) * r.num_output_tokens / len(r.token_times)
        for r in records
        if r.token_times
    )


def _count(records: Iterable[CallRecord], ending: Ending) -> int:
    return sum(record.ending is ending for record in records)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


# ---- the same records as the simulator's ----------------------------------------------------------------


_REASONS: Final = {
    Ending.COMPLETED: FinishReason.LENGTH,
    Ending.CANCELLED: FinishReason.ABORT,
    Ending.FAILED: FinishReason.ERROR,
    Ending.REJECTED: None,
}


def _as_run(play: Play) -> Run:
    requests = [
        RequestRecord(
            str(record.index),
            record.source,
            record.fairness_class,
            record.sent_at,
            record.num_prompt_tokens,
            token_times=record.token_times,
            finished_at=record.ended_at,
            finish_reason=_REASONS[record.ending],
            num_cached_tokens=record.num_cached_tokens or 0,
        )
        for record in play.records
    ]
    return Run(requests, _slices(play.records), play.wall_s)


def _slices(records: Sequence[CallRecord]) -> list[StepRecord]:
    service: dict[int, dict[Owner, float]] = defaultdict(lambda: defaultdict(float))
    backlogged: dict[int, set[Owner]] = defaultdict(set)
    for record in records:
        owner = (record.fairness_class, record.source)
        first_at = record.first_token_at
        if first_at is not None:
            num_computed = record.num_prompt_tokens - (record.num_cached_tokens or 0)
            for index, part in _spread(record.sent_at, first_at):
                service[index][owner] += part * num_computed
            per_piece = record.num_output_tokens / len(record.token_times)
            for at in record.token_times:
                service[int(at // SLICE_S)][owner] += OUTPUT_WEIGHT * per_piece
        waits_until = first_at if first_at is not None else record.ended_at
        for index in range(math.ceil(record.sent_at / SLICE_S), int(waits_until // SLICE_S)):
            backlogged[index].add(owner)
    return [
        StepRecord(
            index * SLICE_S, SLICE_S, Mode.CONTINUOUS, 0, 0, 0, 0, 0, 0, 0, dict(service[index]), frozenset(owners)
        )
        for index, owners in sorted(backlogged.items())
    ]


def _spread(begin: float, end: float) -> list[tuple[int, float]]:
    """Slices between two instants, each with its part of the time between them."""
    length = max(end - begin, 1e-9)
    first, last = int(begin // SLICE_S), int(end // SLICE_S)
    return [
        (index, (min(end, (index + 1) * SLICE_S) - max(begin, index * SLICE_S)) / length)
        for index in range(first, last + 1)
    ]


# ---- medians --------------------------------------------------------------------------------------------


def _medians(structs: Sequence[S]) -> S:
    values = {name: _median([getattr(each, name) for each in structs]) for name in structs[0].__struct_fields__}
    return type(structs[0])(**values)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _common(scores: Sequence[Score], field: str) -> list[str]:
    names: Callable[[Score], set[str]] = lambda each: set(getattr(each, field))  # noqa: E731
    return sorted(set.intersection(*map(names, scores)))
