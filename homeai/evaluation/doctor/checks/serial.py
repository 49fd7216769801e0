"""A client asks one thing after another although nothing hangs on the answer: its batch is always one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from homeai.evaluation.doctor.facts import Facts, Row
from homeai.evaluation.doctor.finding import Finding, Severity
from homeai.evaluation.doctor.words import percent, seconds
from homeai.evaluation.summary import percentile

MIN_CHAIN: Final = 20  # requests, one right after the other
PAUSE_S: Final = 0.5  # people and speech take longer
AGENTS: Final = "coding"  # a class whose every call hangs on the one before, whatever its prompts look like
LITTLE_COMPANY: Final = 0.5  # others in flight, on average


def check(facts: Facts) -> Finding | None:
    """Of the longest such chain of any source."""
    longest = max((chain for rows in _by_source(facts) for chain in chains(rows)), key=len, default=[])
    if len(longest) < MIN_CHAIN or facts.config is None or facts.config.scheduler.max_num_seqs < 2:
        return None
    first, last = longest[0].arrival, longest[-1].ended_at
    others = [row for row in facts.served if row.source != longest[0].source]
    company = sum(max(0.0, min(row.ended_at, last) - max(row.arrival, first)) for row in others) / max(
        last - first, 1e-9
    )
    if company > LITTLE_COMPANY:
        return None
    at_once = min(4, facts.config.scheduler.max_num_seqs)
    pauses = [b.arrival - a.ended_at for a, b in pairwise(longest)]
    pause = max(0.0, percentile(pauses, 50) or 0.0)
    source = longest[0].source
    return Finding(
        check="serial-client",
        title=f"{source} asks one thing at a time, and the batch stays empty",
        evidence=[
            f"{len(longest)} requests of {source}, each sent {seconds(pause)} (median) after the one before it "
            "ended; none continues another",
            f"beside it {company:.1f} others ran on average, of {facts.config.scheduler.max_num_seqs} seats "
            f"({percent(1 / facts.config.scheduler.max_num_seqs)} used by it)",
        ],
        cause="The client waits for each answer before it asks the next question, and the answers do not build on "
        "each other.",
        advice=[
            f"Let it send {at_once} at once (threads, asyncio, or the number of parallel requests in its settings), "
            "or hand the work in as a file: `homeai batch submit`."
        ],
        severity=Severity.HINT,
    )


def chains(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Runs of requests that follow one another at once and do not continue one another."""
    chain: list[Row] = []
    for row in rows:
        follows = bool(chain) and 0 <= row.arrival - chain[-1].ended_at + 0.01 <= PAUSE_S + 0.01
        if chain and not (follows and not continues(chain[-1], row)):
            yield chain
            chain = []
        chain.append(row)
    yield chain


def continues(before: Row, after: Row) -> bool:
    """A further turn of the same conversation, as agents and chats send it."""
    known = list(before.prefix_hashes)
    is_longer = after.num_prompt >= before.num_prompt + before.num_output // 2
    return bool(known) and is_longer and list(after.prefix_hashes[: len(known)]) == known and after != before


def _by_source(facts: Facts) -> Iterator[list[Row]]:
    by_source: defaultdict[str, list[Row]] = defaultdict(list)
    for row in facts.served:
        if row.fairness_class != AGENTS:
            by_source[row.source].append(row)
    for rows in by_source.values():
        yield sorted(rows, key=lambda row: row.arrival)
