"""Requests are turned away, or wait until they are: a queue too short or too slow, a context too small, a wrong key,
a network too slow to bring them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from homeai.evaluation.doctor.facts import Facts, Row
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import percent, seconds
from homeai.evaluation.summary import percentile

MIN_REFUSED: Final = 5
MANY: Final = 0.05  # of all requests
QUEUE_FULL, TIMED_OUT, TOO_LONG, NO_KEY = "rate_limit_exceeded", "timeout", "context_length_exceeded", "invalid_api_key"
SLOW_UPLOAD = "request_timeout"  # 408, whatever was to be sent
CELL_STEP: Final = 1024


def check(facts: Facts) -> Finding | None:
    """The most frequent reason, where it is frequent."""
    refused = Counter(reason for row in facts.rows if (reason := reason_of(row)) is not None)
    if not refused:
        return None
    reason, count = refused.most_common(1)[0]
    if count < MIN_REFUSED or count < MANY * len(facts.rows):
        return None
    rows = [row for row in facts.rows if reason_of(row) == reason]
    by_class, sources = Counter(row.fairness_class for row in rows), Counter(row.source for row in rows)
    fairness_class = by_class.most_common(1)[0][0]
    cause, advice, settings = _told(facts, reason, fairness_class)
    return Finding(
        check="refusals",
        title="Requests are turned away",
        evidence=[
            f"{count} of {len(facts.rows)} requests in the ledger ended with {reason} "
            f"({percent(count / len(facts.rows))}; up to {percent(MANY)} is usual)",
            f"by class: {_counted(by_class)}; by source: {_counted(sources)}",
        ],
        cause=cause,
        advice=advice,
        settings=settings,
    )


def reason_of(row: Row) -> str | None:
    if row.finish_reason == TIMED_OUT:
        return TIMED_OUT
    if row.status == 408:
        return SLOW_UPLOAD
    known = QUEUE_FULL, TOO_LONG, NO_KEY
    return row.reject_reason if row.reject_reason in known else None


def _told(facts: Facts, reason: str, fairness_class: str) -> tuple[str, list[str], dict[str, str]]:
    config = facts.config
    settings = config.classes.get(fairness_class) if config else None
    if reason == NO_KEY:
        return (
            "A client sends no API key, or one that is not known.",
            ["`homeai keys list`, `homeai keys add NAME`."],
            {},
        )
    if reason == SLOW_UPLOAD:
        return (
            "They come so slowly that the daemon stops waiting for the rest (server.body_timeout_s): the network, "
            "or a client that begins to send before it has everything.",
            ["Look at the network (Wi-Fi, VPN, a proxy that buffers); a longer time-out only keeps the connection."],
            {},
        )
    if reason == TOO_LONG:
        length = facts.status.model.max_model_len if facts.status else None
        wanted = -(-2 * (length or 4096) // CELL_STEP) * CELL_STEP
        return (
            f"Prompts are longer than one request may be ({length or 0:,} tokens).",
            [
                f"Have the client send less (its context setting below {length or 0:,}), or give one request more: "
                "no longer than the model was trained for, and `homeai plan` says whether it fits."
            ],
            {"scheduler.max_model_len": str(wanted), "scheduler.kv_cells": str(max(wanted, facts.num_kv_cells))},
        )
    waits = [row.queue_s for row in facts.served if row.fairness_class == fairness_class and row.queue_s is not None]
    wait, target = percentile(waits, 95), (settings.ttft_target_s if settings else None)
    limit = settings.max_waiting if settings else 0
    timeout_s = settings.queue_timeout_s if settings else 0.0
    if reason == QUEUE_FULL and (wait is None or target is None or wait <= target):
        wanted = max(1, 2 * limit)
        return (
            f"Only {limit} requests of class {fairness_class} may wait (max_waiting), and those that did were served "
            f"soon{f': queue p95 {seconds(wait)}' if wait is not None else ''}.",
            [f"Let more of them wait: {wanted} instead of {limit}."],
            {f"classes.{fairness_class}.max_waiting": str(wanted)},
        )
    queued = f"queue p95 {seconds(wait)}" if wait is not None else "the queue did not move"
    return (
        f"More comes than is served: class {fairness_class} waits too long already ({queued}; queue_timeout_s "
        f"{timeout_s:g}, max_waiting {limit}).",
        [
            "A longer queue would only wait longer. Send less at once, give what can wait a class of its own "
            "(background), or take a smaller model.",
        ],
        {},
    )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(3))
