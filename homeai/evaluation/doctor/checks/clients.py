"""Clients that leave before they are answered: a time-out shorter than an answer takes, or the same again and again."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from homeai.evaluation.doctor.facts import Facts, Row
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import percent, quantiles, seconds
from homeai.evaluation.summary import percentile

CLOSED: Final = 499  # the ledger's word for a client that left
MIN_LEFT: Final = 5
MANY: Final = 0.3  # of a source's requests; people stop an answer now and then
SAME_TIME: Final = 0.2  # how far apart the instants of a time-out are, of their median
SLACK_S: Final = 0.25  # or so much: a busy machine notices late


def check(facts: Facts) -> Finding | None:
    """Of a source that leaves after the same time again and again."""
    by_source: defaultdict[str, list[Row]] = defaultdict(list)
    for row in facts.rows:
        if row.e2e_s is not None:
            by_source[row.source].append(row)
    for source, rows in by_source.items():
        left = [row for row in rows if row.status == CLOSED]
        stayed_s = [row.e2e_s for row in left if row.e2e_s is not None]
        middle = percentile(stayed_s, 50) or 0.0
        alike = [value for value in stayed_s if abs(value - middle) <= max(SLACK_S, SAME_TIME * middle)]
        if len(left) < MIN_LEFT or len(left) < MANY * len(rows) or len(alike) < 0.8 * len(left):
            continue
        unanswered = sum(row.num_output == 0 for row in left)
        longest = max((row.e2e_s or 0.0 for row in rows if row.status == 200), default=0.0)
        whole = f"whole answers took up to {seconds(longest)}" if longest else "no answer to it came whole"
        wanted = max(2 * middle, 1.5 * longest)
        return Finding(
            check="client-gives-up",
            title=f"{source} leaves before it is answered",
            evidence=[
                f"{len(left)} of {len(rows)} requests of {source} were left by the client "
                f"({percent(len(left) / len(rows))}; up to {percent(MANY)} is usual), {unanswered} of them before "
                "the first token",
                f"it left after {quantiles(stayed_s)}; {whole}",
            ],
            cause=f"Its own time-out, of some {seconds(middle)}, is shorter than an answer takes; what was "
            "computed until then is thrown away.",
            advice=[
                f"Raise the client's time-out to {seconds(wanted)} or more, or let it stream; shorter answers "
                "(max_tokens) come sooner."
            ],
        )
    return None
