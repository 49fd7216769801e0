"""When more run at once more is done, and p95 gets worse than anybody wants: admission is to be limited."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from homeai.evaluation.doctor.facts import Facts, Row
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import percent, quantiles, seconds
from homeai.evaluation.summary import percentile

MIN_ROWS: Final = 8  # in each of the two groups
MORE_DONE: Final = 1.1  # times the tokens a second
MUCH_WORSE: Final = 2.0  # times the TTFT p95
LEAST_WAIT_S: Final = 1.0  # a queue time-out
HEAVY: Final = 0.5  # of the work of one source
LIGHT_CLASS: Final = "background"


def check(facts: Facts) -> Finding | None:
    """Calm: the quarter with the least company at arrival; busy: the quarter with the most."""
    rows = [row for row in facts.served if facts.ttft_target_s(row.fairness_class) is not None]
    if facts.config is None or len(rows) < 4 * MIN_ROWS:
        return None
    company = company_of(rows, facts.served)
    low, high = percentile(company, 25) or 0, percentile(company, 75) or 0
    calm = [row for row, count in zip(rows, company, strict=True) if count <= low]
    busy = [row for row, count in zip(rows, company, strict=True) if count >= high]
    if min(len(calm), len(busy)) < MIN_ROWS or high < 2 * low + 2:
        return None
    before, after = _p95(calm), _p95(busy)
    target = min(t for row in busy if (t := facts.ttft_target_s(row.fairness_class)) is not None)
    slow, quick = throughput(facts.served, int(low) + 1, int(high) + 1)
    if after <= target or after < MUCH_WORSE * before or quick < MORE_DONE * slow:
        return None
    bearable = _bearable(rows, company, target)
    names = Counter(row.fairness_class for row in busy)
    fairness_class = names.most_common(1)[0][0]
    work: Counter[str] = Counter()
    for row in busy:
        work[row.source] += row.num_uncached + 2 * row.num_output
    heavy, amount = work.most_common(1)[0]
    share = amount / max(1, work.total())
    patience_s = max(LEAST_WAIT_S, 2 * target)
    limit = max(1, bearable + 1 - facts.config.scheduler.max_num_seqs)
    advice = [
        f"Admit less: at up to {bearable} others in flight TTFT p95 stays within {target:g} s. Let at most {limit} "
        f"of class {fairness_class} wait (now {facts.config.classes[fairness_class].max_waiting}), none longer than "
        f"{patience_s:g} s (now {facts.config.classes[fairness_class].queue_timeout_s:g}); who is refused is told "
        "when to come again."
    ]
    if share >= HEAVY and len(work) > 1 and all(r.fairness_class != LIGHT_CLASS for r in busy if r.source == heavy):
        advice.append(f"Or give {heavy} a class of its own that yields: class {LIGHT_CLASS} for it in `sources`.")
    return Finding(
        check="tail",
        title="More is done at busy times, and first tokens come too late then",
        evidence=[
            f"calm (up to {low:g} others in flight, {len(calm)} requests): {slow:.1f} tokens/s, TTFT {_spread(calm)}",
            f"busy ({high:g} or more, {len(busy)} requests): {quick:.1f} tokens/s, TTFT {_spread(busy)}",
            f"p95 {seconds(before)} → {seconds(after)}, wanted {target:g} s",
            f"most of the work of busy times is {heavy}'s: {percent(share)}",
        ],
        cause="So many are let in that each of them waits for all the others.",
        advice=advice,
        settings={
            f"classes.{fairness_class}.max_waiting": str(limit),
            f"classes.{fairness_class}.queue_timeout_s": f"{patience_s:g}",
        },
    )


def company_of(rows: Sequence[Row], everybody: Sequence[Row]) -> list[int]:
    """For each row: how many others were in flight when it came."""
    starts = sorted(row.arrival for row in everybody)
    ends = sorted(row.ended_at for row in everybody)
    return [max(0, bisect_right(starts, row.arrival) - bisect_left(ends, row.arrival) - 1) for row in rows]


def throughput(rows: Sequence[Row], few: int, many: int) -> tuple[float, float]:
    """Output tokens a second while at most `few`, and at least `many`, requests were in flight; a request's tokens
    are spread over the time after its first."""
    edges: list[tuple[float, int, float]] = []
    for row in rows:
        first_at = row.arrival + (row.ttft_s or 0.0)
        rate = row.num_output / max(row.ended_at - first_at, 1e-3)
        edges += [(row.arrival, 1, 0.0), (first_at, 0, rate), (max(row.ended_at, first_at + 1e-3), -1, -rate)]
    edges.sort()
    time_s, done = [0.0, 0.0], [0.0, 0.0]
    count, rate = 0, 0.0
    for (at, change, faster), (until, _, _) in pairwise(edges):
        count, rate = count + change, rate + faster
        for index, is_so in enumerate((0 < count <= few, count >= many)):
            if is_so:
                time_s[index] += until - at
                done[index] += rate * (until - at)
    return done[0] / max(time_s[0], 1e-9), done[1] / max(time_s[1], 1e-9)


def _bearable(rows: Sequence[Row], company: Sequence[int], target: float) -> int:
    """The most company with which TTFT p95 of all with that or less is within the target."""
    best = 0
    for count in sorted(set(company)):
        if _p95([row for row, others in zip(rows, company, strict=True) if others <= count]) > target:
            break
        best = count
    return best


def _p95(rows: Sequence[Row]) -> float:
    return percentile([row.ttft_s for row in rows if row.ttft_s is not None], 95) or 0.0


def _spread(rows: Sequence[Row]) -> str:
    return quantiles(row.ttft_s for row in rows if row.ttft_s is not None)
