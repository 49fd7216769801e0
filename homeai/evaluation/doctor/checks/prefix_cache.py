"""Prompts begin like earlier ones, and are read anew all the same."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from homeai.evaluation.bench.own import BLOCK
from homeai.evaluation.doctor.facts import Facts, Row
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import percent, seconds
from homeai.vitals import BARE, BeginningStatus, ChangingLine

MIN_TIMES: Final = 3
MOST: Final = 0.5  # of a source's prompts
PART: Final = 0.3  # of them, where earlier messages are left out
CHARS_PER_TOKEN: Final = 4
FOUND_AGAIN: Final = 0.5  # of what was sent before, in the cache
MIN_RESENT: Final = 256  # tokens that could have been found
_SPECIAL: Final = frozenset(r"\.+*?()|[]{}^$")


def check(facts: Facts) -> Finding | None:
    """A line that changes from request to request."""
    found = [
        (begins, line)
        for begins in (facts.vitals.beginnings if facts.vitals else ())
        for line in begins.lines[:1]
        if line.num_changes >= max(MIN_TIMES, MOST * (begins.num_prompts - 1))
    ]
    if not found:
        return None
    begins, line = max(found, key=lambda pair: pair[1].num_changes * pair[1].num_lost_chars)
    rows = [row for row in facts.served if row.source == begins.source]
    advice, settings = _steady(facts, begins, line)
    place = f"line {line.line} of message {line.message + 1} ({line.role})"
    shown = f", like “{line.mask}” (# stands for what has digits, @ for names of days and months)" if line.mask else ""
    return Finding(
        check="changing-line",
        title=f"A line in the prompts of {begins.source} defeats the prefix cache",
        evidence=[
            f"{place} changed in {line.num_changes} of {begins.num_prompts - 1} prompts that followed "
            f"another{shown}; what changes as often as that is to come last",
            f"behind it {line.num_lost_chars:,} characters were the same again (some "
            f"{line.num_lost_chars // CHARS_PER_TOKEN:,} tokens), and were read anew",
            *_found(begins.source, rows),
        ],
        cause=_cause(line),
        advice=advice,
        settings=settings,
    )


def check_shortened(facts: Facts) -> Finding | None:
    """A client that leaves its oldest messages out, a few at every turn."""
    for begins in facts.vitals.beginnings if facts.vitals else ():
        if begins.num_shortened >= max(MIN_TIMES, PART * begins.num_prompts):
            rows = [row for row in facts.served if row.source == begins.source]
            return Finding(
                check="shortened-history",
                title=f"{begins.source} drops old messages at every turn, and all that follows is read anew",
                evidence=[
                    f"in {begins.num_shortened} of {begins.num_prompts} prompts earlier messages were left out that "
                    f"the one before had (from {percent(PART)} on it counts); behind them "
                    f"{begins.num_lost_chars_shortened:,} characters were the same again",
                    *_found(begins.source, rows),
                ],
                cause="The client keeps its history at a fixed length: at every turn the beginning is another one.",
                advice=[
                    "Give the client a longer history, so that it drops messages seldom (its context length; here "
                    f"up to {_max_len(facts):,} tokens fit), or many of them at once."
                ],
            )
    return None


def check_resent(facts: Facts) -> Finding | None:
    """What was sent before is sent again, and is not in the cache any more."""
    by_source: defaultdict[str, list[Row]] = defaultdict(list)
    for row in facts.served:
        by_source[row.source].append(row)
    for source, rows in by_source.items():
        resent = resent_tokens(rows)
        total, found = sum(sent for sent, _ in resent), sum(min(sent, cached) for sent, cached in resent)
        times = sum(sent >= BLOCK for sent, _ in resent)
        if times < MIN_TIMES or total < MIN_RESENT or found >= FOUND_AGAIN * total:
            continue
        cause, advice, settings = _why_gone(facts, source)
        return Finding(
            check="resent",
            title=f"{source} sends the same beginnings again, and they are not found",
            evidence=[
                f"{times} of {len(rows)} prompts began as an earlier one of the same source: {total:,} tokens, of "
                f"which {found:,} were in the cache ({percent(found / total)}; {percent(FOUND_AGAIN)} is the least)",
                *_found(source, rows),
            ],
            cause=cause,
            advice=advice,
            settings=settings,
        )
    return None


def resent_tokens(rows: list[Row]) -> list[tuple[int, int]]:
    """For each row, in order: tokens of its beginning that the source had sent before, and those found in the cache."""
    seen: set[str] = set()
    result = []
    for row in sorted(rows, key=lambda row: row.arrival):
        known = 0
        for digest in row.prefix_hashes:
            if digest not in seen:
                break
            known += BLOCK
        result.append((known, row.num_cached))
        seen.update(row.prefix_hashes)
    return result


def pattern_of(mask: str) -> str:
    """A regular expression (RE2) that finds what the mask was made of."""
    escaped = "".join(f"\\{char}" if char in _SPECIAL else char for char in mask)
    return escaped.replace("#", r"\w+").replace("@", r"\w+")


def _cause(line: ChangingLine) -> str:
    if _is_shuffled(line):
        return "The same lines come in another order each time, and a prompt is found up to its first difference."
    return "A prompt is found in the cache up to its first difference, however long it stays the same after that."


def _is_shuffled(line: ChangingLine) -> bool:
    return 2 * line.num_moves > line.num_changes


def _steady(facts: Facts, begins: BeginningStatus, line: ChangingLine) -> tuple[list[str], dict[str, str]]:
    if _is_shuffled(line):
        return [f"Have {begins.source} sort what it lists there (entities, tools, files), and add to the end."], {}
    is_ours_to_move = line.role in ("system", "developer") or (line.message == 0 and line.role != BARE)
    if not is_ours_to_move:
        return [f"Have {begins.source} put what changes at the end of what it sends."], {}
    if line.mask is None:
        return [
            f"See what {begins.source} writes there, and give the source a rule: `volatile` in `sources`, with a "
            "pattern for it (action move keeps it in sight of the model, drop leaves it out)."
        ], {}
    return [
        "Give the source a rule that moves it to the end of the last message, where the model still sees it (action "
        "drop leaves it out). In `sources` it keeps its own match.",
    ], {"sources": _with_rule(facts, begins.source, pattern_of(line.mask))}


def _with_rule(facts: Facts, source: str, pattern: str) -> str:
    """The source's entry of the settings, its own rules kept, as YAML writes it."""
    known = next((each for each in (facts.config.sources if facts.config else ()) if each.name == source), None)
    rows = [row for row in facts.rows if row.source == source]
    default = facts.config.scheduler.default_class if facts.config else "interactive"
    fairness_class = known.fairness_class if known else rows[-1].fairness_class if rows else default
    rules = [
        f"{{pattern: {_quoted(rule.pattern)}, action: {rule.action}}}" for rule in (known.volatile if known else ())
    ]
    rules.append(f"{{pattern: {_quoted(pattern)}, action: move}}")
    return f"[{{name: {_quoted(source)}, class: {fairness_class}, volatile: [{', '.join(rules)}]}}]"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _found(source: str, rows: list[Row]) -> list[str]:
    if not rows:
        return []
    prompt, cached = sum(row.num_prompt for row in rows), sum(row.num_cached for row in rows)
    took_s = sum(row.prefill_s or 0.0 for row in rows)
    return [
        f"of {prompt:,} prompt tokens of {source} {cached:,} were found in the cache "
        f"({percent(cached / max(1, prompt))}); the rest took {seconds(took_s)} to read, in {len(rows)} requests"
    ]


def _why_gone(facts: Facts, source: str) -> tuple[str, list[str], dict[str, str]]:
    window, config = facts.window, facts.config
    known = next((b for b in (facts.vitals.beginnings if facts.vitals else ()) if b.source == source), None)
    if known is not None and 2 * known.num_cache_refused > known.num_prompts:
        return (
            f"The client asks for it itself: cache_prompt was false in {known.num_cache_refused} of "
            f"{known.num_prompts} requests.",
            [f"Take `cache_prompt: false` out of what {source} sends."],
            {},
        )
    evictions = window.num_evictions if window else 0
    if evictions == 0 or config is None:
        return (
            "Nothing had to give way lately, so the engine was another one in between (a restart, an unload), or "
            "the prompts came long ago.",
            ["Keep the model loaded (residency.policy: pinned); pin beginnings that always come back (`pins`)."],
            {},
        )
    scheduler, cells = config.scheduler, facts.num_kv_cells
    if scheduler.prefix_cache_tokens is not None or not facts.on_gpu:
        now = scheduler.prefix_cache_tokens if scheduler.prefix_cache_tokens is not None else cells // 8
        more = min(cells, max(2 * now, cells // 2))
        if more > now:
            return (
                f"What is kept for reuse may take {now:,} of {cells:,} cells (scheduler.prefix_cache_tokens), and "
                f"{evictions} beginnings gave way lately.",
                [f"Keep more: {more:,}. On a CPU every cell in use makes steps a little slower."],
                {"scheduler.prefix_cache_tokens": str(more)},
            )
    return (
        f"{evictions} beginnings gave way lately: {cells:,} cells and {scheduler.max_cached_seqs} kept texts are too "
        "few for all who ask.",
        [f"More kept texts ({2 * scheduler.max_cached_seqs}), more cells, or more host memory for what gives way."],
        {
            "scheduler.max_cached_seqs": str(min(255, 2 * scheduler.max_cached_seqs)),
            "scheduler.host_cache_mb": str(2 * scheduler.host_cache_mb or 512),
        },
    )


def _max_len(facts: Facts) -> int:
    return (facts.status.model.max_model_len if facts.status else None) or 0
