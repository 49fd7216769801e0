"""The first token waits for the CPU that makes tokens of the text."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import quantiles, seconds
from homeai.evaluation.summary import percentile

MIN_TEXTS: Final = 4
SLOW_S: Final = 0.5  # at p95, from being handed over to being tokens
USUAL_CHARS_PER_S: Final = 300_000  # of one thread of a slow machine that nobody disturbs


def check(facts: Facts) -> Finding | None:
    texts = facts.vitals.tokenised if facts.vitals else []
    whole = percentile([text.waited_s + text.worked_s for text in texts], 95)
    if len(texts) < MIN_TEXTS or whole is None or whole < SLOW_S:
        return None
    waited_s, worked_s = sum(text.waited_s for text in texts), sum(text.worked_s for text in texts)
    rate = sum(text.num_chars for text in texts) / max(worked_s, 1e-9)
    cause, advice, settings = _told(facts, waited_s, worked_s, rate)
    return Finding(
        check="tokenising",
        title="Prompts wait to be made into tokens, before they queue",
        evidence=[
            f"of the last {len(texts)} long texts: waiting for a thread {quantiles(text.waited_s for text in texts)}",
            f"working {quantiles(text.worked_s for text in texts)}; together p95 {seconds(whole)}, up to "
            f"{seconds(SLOW_S)} is usual",
            f"{rate / 1e3:,.0f} thousand characters a second in a thread (a machine at rest makes "
            f"{USUAL_CHARS_PER_S / 1e3:,.0f} at least); the longest had {max(text.num_chars for text in texts):,}",
        ],
        cause=cause,
        advice=advice,
        settings=settings,
    )


def _told(facts: Facts, waited_s: float, worked_s: float, rate: float) -> tuple[str, list[str], dict[str, str]]:
    num_cpus = facts.machine.num_cpus if facts.machine else None
    threads = facts.config.model.num_threads if facts.config else None
    if rate < USUAL_CHARS_PER_S and num_cpus and not facts.on_gpu and (threads or num_cpus) >= num_cpus > 1:
        fewer = num_cpus - 1
        return (
            f"The CPU is taken: the model itself computes on all {num_cpus} of them.",
            [f"Leave one to the front end: {fewer} threads for the model instead of {threads or num_cpus}."],
            {"model.num_threads": str(fewer)},
        )
    if waited_s > worked_s:
        return (
            "Several very long texts come at once: two threads make tokens, and one more those above 128 KiB.",
            ["Have the clients send fewer of them at once, or shorter ones."],
            {},
        )
    return (
        "The texts themselves are that long.",
        ["Send less of them: what does not fit into the model's context is refused only after it was sent."],
        {},
    )
