"""First tokens come late because of long prompts: their own, or somebody else's.

Requests are shown in two groups: prefill-heavy ones, most of whose work is to read, and the others, decode-heavy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from homeai.evaluation.doctor.checks.tail import company_of
from homeai.evaluation.doctor.facts import Facts, Row
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import milliseconds, percent, quantiles, seconds
from homeai.evaluation.summary import percentile

LONG: Final = 512  # tokens that were not in the cache
READS_MORE: Final = 4  # times as many as it writes
MIN_ROWS: Final = 4
MISSED: Final = 0.25  # of a group that comes after its target
OWN: Final = 0.5  # of the time to the first token, spent on its own prompt
MOST: Final = 0.5  # of the time to a short one's first token, while a long prompt was read
FEW: Final = 1  # others in flight, for the short ones to compare with: a full house has other reasons to wait
TIMES_SLOWER: Final = 3.0  # at p95 beside a long prompt, than at p50 without one
WORTH_SENDING: Final = 128  # tokens: no document is shorter
CHUNKS: Final = (32, 512)  # tokens: smaller ones waste the device, larger ones are no faster
GOOD_CHUNK: Final = 128
LIGHT_CLASS: Final = "background"


def is_prefill_heavy(row: Row) -> bool:
    return row.num_uncached >= LONG and row.num_uncached >= READS_MORE * row.num_output


def prefill_rate(rows: Sequence[Row]) -> float:
    """Tokens a second that long prompts were read at, others' work included; 0 where none was."""
    known = [(row.num_uncached, row.prefill_s) for row in rows if is_prefill_heavy(row) and row.prefill_s]
    took_s = sum(took for _, took in known if took is not None)
    return sum(count for count, _ in known) / took_s if took_s > 0 else 0.0


def check(facts: Facts) -> Finding | None:
    """The long ones' own lateness; see `check_others` for those beside them."""
    long = [row for row in facts.served if is_prefill_heavy(row)]
    timed = [(row, target) for row in long if (target := facts.ttft_target_s(row.fairness_class)) is not None]
    missed = [(row, target) for row, target in timed if row.ttft_s is not None and row.ttft_s > target]
    late = [(row, target) for row, target in missed if (row.prefill_s or 0.0) >= OWN * (row.ttft_s or 0.0)]
    if len(late) < max(MIN_ROWS, MISSED * len(timed)) or facts.config is None:
        return None
    rate = prefill_rate(long)
    target = min(target for _, target in late)
    fitting = int(rate * target)
    cause, advice, settings = _told(facts, [row for row, _ in late], rate, target, fitting)
    return Finding(
        check="long-prompts",
        title="First tokens of long prompts come late",
        evidence=[
            *groups(facts.served),
            f"{len(late)} of {len(timed)} long prompts missed their class's ttft_target_s (the tightest: {target:g} "
            f"s) by the reading itself, not by the queue; up to {percent(MISSED)} is usual",
            f"read at {rate:,.0f} tokens/s: {target:g} s are enough for {fitting:,} tokens, these have up to "
            f"{max(row.num_uncached for row, _ in late):,} that are not in the cache",
        ],
        cause=cause,
        advice=advice,
        settings=settings,
    )


def check_others(facts: Facts) -> Finding | None:
    """Short requests that wait behind long prompts."""
    long = [row for row in facts.served if is_prefill_heavy(row)]
    short = [row for row in facts.served if not is_prefill_heavy(row)]
    readings = _Readings(long)
    beside = [row for row in short if readings.beside(row) >= MOST * (row.ttft_s or 0.0)]
    calm = [row for row, others in zip(short, company_of(short, facts.served), strict=True) if others <= FEW]
    alone = [row for row in calm if readings.beside(row) == 0]
    if facts.config is None or len(beside) < MIN_ROWS or len(alone) < MIN_ROWS:
        return None
    slow = percentile([row.ttft_s for row in beside if row.ttft_s is not None], 95) or 0.0
    quick = percentile([row.ttft_s for row in alone if row.ttft_s is not None], 50) or 0.0
    targets = [target for row in beside if (target := facts.ttft_target_s(row.fairness_class)) is not None]
    if not targets or slow <= min(targets) or slow < TIMES_SLOWER * quick:
        return None
    scheduler = facts.config.scheduler
    itl = min((c.itl_target_s for c in facts.config.classes.values() if c.itl_target_s), default=0.2)
    rate = prefill_rate(long)
    chunk = max(CHUNKS[0], min(CHUNKS[1], int(rate * itl) // 32 * 32))
    settings: dict[str, str] = {}
    if not scheduler.chunked_prefill:
        cause = "Long prompts are read in one go (scheduler.chunked_prefill is false), and everybody else waits for it."
        settings = {"scheduler.chunked_prefill": "true", "scheduler.max_chunk_tokens": str(chunk)}
        advice = [
            f"Read them in pieces of {chunk} tokens: at {rate:,.0f} tokens/s one takes {milliseconds(chunk / rate)}."
        ]
    elif not scheduler.adaptive_budget:
        cause = f"Steps take up to {scheduler.max_num_batched_tokens} tokens, whatever that costs running streams."
        settings = {"scheduler.adaptive_budget": "true", "scheduler.max_chunk_tokens": str(chunk)}
        advice = ["Let the steps be sized by time, so that the tightest itl_target_s is kept."]
    elif scheduler.mode in ("single", "static", "window"):
        cause = f"scheduler.mode is {scheduler.mode}: whoever comes waits for what runs."
        settings = {"scheduler.mode": "auto"}
        advice = ["Let requests join at every step."]
    else:
        heavy = Counter(row.source for row in long).most_common(1)[0][0]
        cause = f"Long prompts (most of them from {heavy}) get as much of the device as the short ones beside them."
        advice = [f"Give {heavy} a class that yields to the others: class {LIGHT_CLASS} for it in `sources`."]
    itl_seen = ", ".join(f"{name} {milliseconds(value)}" for name, value in facts.itl_p95_s.items())
    return Finding(
        check="behind-long-prompts",
        title="Short requests wait behind long prompts",
        evidence=[
            *groups(facts.served),
            f"{len(beside)} short ones waited mostly while a long prompt was read: TTFT p95 {seconds(slow)}; "
            f"{len(alone)} had neither that nor much company: p50 {seconds(quick)}; the tightest target is "
            f"{min(targets):g} s",
            *([f"between two tokens, p95 by class: {itl_seen}; itl_target_s {itl:g}"] if itl_seen else []),
        ],
        cause=cause,
        advice=advice,
        settings=settings,
    )


def groups(rows: Sequence[Row]) -> list[str]:
    """A line for each group: how many, TTFT and queue as distributions."""
    lines = []
    for name, wanted in (("prefill-heavy", True), ("decode-heavy", False)):
        group = [row for row in rows if is_prefill_heavy(row) is wanted and row.ttft_s is not None]
        if group:
            ttft = quantiles(row.ttft_s for row in group if row.ttft_s is not None)
            queue = quantiles(row.queue_s for row in group if row.queue_s is not None)
            lines.append(f"{name}: {len(group)} requests, TTFT {ttft}; of that in the queue {queue}")
    return lines


def _told(
    facts: Facts, late: Sequence[Row], rate: float, target: float, fitting: int
) -> tuple[str, list[str], dict[str, str]]:
    assert facts.config is not None, "checked before"
    scheduler = facts.config.scheduler
    chunk = min(scheduler.max_chunk_tokens, scheduler.max_num_batched_tokens)
    if scheduler.chunked_prefill and chunk < GOOD_CHUNK:
        return (
            f"Prompts are read in pieces of {chunk} tokens only, too few to keep the device busy.",
            [f"Pieces of 256 tokens ({GOOD_CHUNK} at least), in steps of up to 512."],
            {"scheduler.max_chunk_tokens": "256", "scheduler.max_num_batched_tokens": "512"},
        )
    heavy = Counter(row.source for row in late).most_common(1)[0][0]
    settings, advice = {}, []
    if fitting < WORTH_SENDING:
        took_s = math.ceil(max(row.prefill_s or 0.0 for row in late))
        advice.append(f"No document is read in {target:g} s here; a target that can be met is {took_s} s.")
        settings[f"classes.{late[0].fairness_class}.ttft_target_s"] = str(took_s)
    else:
        advice.append(
            f"Keep what is new in a prompt below {fitting:,} tokens: shorter documents, or what stays the same first, "
            "so that it is found in the prefix cache; long beginnings that many share can be pinned (`pins`)."
        )
    if all(row.fairness_class != LIGHT_CLASS for row in late if row.source == heavy):
        advice.append(f"If nobody waits for {heavy}: class {LIGHT_CLASS} for it in `sources` (it has no target).")
    if not facts.on_gpu and facts.machine is not None and facts.config.model.num_threads is not None:
        free = facts.machine.num_cpus - round(facts.machine.others_cpus)
        if facts.config.model.num_threads < free:
            advice.append(f"The model computes on {facts.config.model.num_threads} CPUs, and could have {free}.")
            settings["model.num_threads"] = str(free)
    return (
        f"{rate:,.0f} tokens/s is what this model reads on this machine; {target:g} s is less than it takes.",
        advice,
        settings,
    )


class _Readings:
    """When long prompts were read: from the batch to their first token."""

    def __init__(self, long: Sequence[Row]) -> None:
        spans = [(row.arrival + (row.queue_s or 0.0), row.arrival + (row.ttft_s or 0.0)) for row in long]
        self._spans = sorted(spans)
        self._begins = [begin for begin, _ in self._spans]
        self._longest_s = max((end - begin for begin, end in spans), default=0.0)

    def beside(self, row: Row) -> float:
        """Of a request's way to its first token, the seconds in which one of them was read."""
        until = row.arrival + (row.ttft_s or 0.0)
        first, last = (bisect_left(self._begins, at) for at in (row.arrival - self._longest_s, until))
        spans = self._spans[first:last]
        return max((max(0.0, min(until, end) - max(row.arrival, begin)) for begin, end in spans), default=0.0)
