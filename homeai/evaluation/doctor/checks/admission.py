"""Requests wait for a seat while memory is free: too few sequences, or a cap, or a mode that lets nobody in."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import OUTSIDE, Facts, Window
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import percent, seconds, span, sparkline
from homeai.evaluation.summary import percentile

MIN_BUSY_S: Final = 5.0
MIN_WAITED_S: Final = 20.0  # request-seconds: a crowd that comes at once, and is served, is none
MUCH_WAITING: Final = 0.5  # request-seconds of waiting for each second with work
FREE_KV: Final = 0.7  # of the cells, used at the peak: less is free memory
KV_KEPT: Final = 0.9  # of the cells may be planned for
MAX_SEQS: Final = 256  # as the settings allow
AT_ONCE: Final = 4  # times as many seats at one change: more rows make every step longer


def check(facts: Facts) -> Finding | None:
    window, config = facts.window, facts.config
    if window is None or config is None or window.busy_s < MIN_BUSY_S or not facts.num_kv_cells:
        return None
    reasons = {reason: waited for reason, waited in window.reasons.items() if reason not in OUTSIDE}
    waited_s = sum(reasons.values())
    kv_share = window.max_kv_used / facts.num_kv_cells
    if waited_s < max(MIN_WAITED_S, MUCH_WAITING * window.busy_s) or kv_share > FREE_KV:
        return None
    reason = max(reasons, key=lambda each: reasons[each])
    told = _told(facts, window, reason)
    if told is None:
        return None
    cause, advice, settings = told
    queue = percentile([row.queue_s for row in facts.served if row.queue_s is not None], 95)
    return Finding(
        check="admission",
        title="Requests wait although there is memory for more of them",
        evidence=[
            f"{waited_s:,.0f} request-seconds of waiting in {window.busy_s:,.0f} s with work (at most "
            f"{MUCH_WAITING:g} per second are usual); {percent(reasons[reason] / waited_s)} for {reason}",
            f"at most {window.max_running} ran and {window.max_waiting} waited at once; scheduler.max_num_seqs is "
            f"{config.scheduler.max_num_seqs}",
            f"KV in use at the peak: {window.max_kv_used:,} of {facts.num_kv_cells:,} cells ({percent(kv_share)}; up "
            f"to {percent(FREE_KV)} counts as free)",
            *_growth(facts),
            *([f"queue p95 {seconds(queue)} in the ledger"] if queue is not None else []),
        ],
        cause=cause,
        advice=advice,
        settings=settings,
    )


def _told(facts: Facts, window: Window, reason: str) -> tuple[str, list[str], dict[str, str]] | None:
    """Cause, advice and lines for what is waited for most; None: not a matter of admission."""
    config = facts.config
    assert config is not None, "checked before"
    scheduler = config.scheduler
    match reason:
        case "sequence_slot":
            wanted = seats(facts, window)
            if wanted <= scheduler.max_num_seqs:
                return None
            return (
                f"All {scheduler.max_num_seqs} seats of the batch are taken, and the KV cache has room for more.",
                [
                    f"Raise scheduler.max_num_seqs from {scheduler.max_num_seqs} to {wanted}; each stream gets "
                    f"slower as more run (a step takes {seconds(window.mean_step_s)} now), so compare: `homeai bench "
                    f"--control scheduler.max_num_seqs={scheduler.max_num_seqs},{wanted}`."
                ],
                {"scheduler.max_num_seqs": str(wanted)},
            )
        case "single_mode" | "batch_mode":
            return (
                f"scheduler.mode is {scheduler.mode}: nobody joins while others run.",
                ["Let requests join at every step (auto is single while only one is there)."],
                {"scheduler.mode": "auto"},
            )
        case "class_cap":
            capped = {name: c.max_running for name, c in config.classes.items() if c.max_running is not None}
            names = ", ".join(f"{name} {cap}" for name, cap in capped.items())
            return (
                f"A class runs as many requests as it may (max_running: {names or 'none set; kv_cap counts, too'}).",
                ["Raise the class's max_running, or its kv_cap, or take them out."],
                {f"classes.{name}.max_running": str(2 * cap) for name, cap in capped.items()},
            )
        case "source_cap":
            sources = {each.name: each.max_running for each in config.sources if each.max_running is not None}
            names = ", ".join(f"{name} {cap}" for name, cap in sources.items())
            return (
                f"A source runs as many requests as it may (max_running: {names or 'none set; fair shares count'}).",
                ["Raise max_running of that source in `sources`, if its requests may run at once."],
                {},
            )
    return None


def _growth(facts: Facts) -> list[str]:
    """How many waited, slice by slice."""
    slices = facts.vitals.slices if facts.vitals else []
    bars = sparkline([each.waiting for each in slices])
    return [f"waiting, the last {span((facts.at - slices[0].at) / 3600)}: {bars}"] if bars else []


def seats(facts: Facts, window: Window) -> int:
    """For all who were there at once, as far as the cells go, and not too many more at one change."""
    assert facts.config is not None, "checked before"
    most = min(AT_ONCE * facts.config.scheduler.max_num_seqs, MAX_SEQS)
    at_once = max(window.max_running + window.max_waiting, 1)
    per_request = max(1, window.max_kv_used // max(1, window.max_running))
    return max(1, min(at_once, int(KV_KEPT * facts.num_kv_cells) // per_request, most))
