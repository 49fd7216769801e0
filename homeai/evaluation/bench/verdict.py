"""What the rows of a bench mean for the house, in sentences that cite them. Pure.

Decided in this order, the first that holds being the headline:

1. requests rarely overlap: residency and the time to load come first, batching has nothing to do;
2. too much is refused or fails at the normal rate: admission first;
3. even one at a time is too slow: the model or the machine, no schedule helps;
4. `single` was measured beside continuous: batching pays by throughput, by latency, or not at all;
5. otherwise it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import yaml

from homeai.config_reading import Tree, merged, nested, parse_value
from homeai.evaluation.bench.rows import Findings, Overlap, Row, excess, misses
from homeai.evaluation.bench.score import Score

RARE: Final = 0.05  # of the time with work
PAYS_THROUGHPUT: Final = 1.15
PAYS_RATE: Final = 1.2
PAYS_LATENCY: Final = 1.5
TIE: Final = 0.05  # costs this close are the same
AGREEMENT: Final = 0.10
STEADY: Final = 0.25  # how far the throughput of a run's halves may be apart
LATE_S: Final = 0.05
MUCH_CACHED: Final = 0.3

MODE: Final = "scheduler.mode"


class Sentence(msgspec.Struct, frozen=True):
    """`rows`: the ids that it comes from; empty only when it says that something was not measured."""

    topic: str
    text: str
    rows: list[str] = []

    def __str__(self) -> str:
        return f"{self.text} [{', '.join(self.rows)}]" if self.rows else self.text


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`pays`: whether continuous batching does, None: not known. `settings`: the lines to change, by key."""

    pays: bool | None
    headline: Sentence
    sentences: list[Sentence]
    settings: dict[str, str]
    gain: Sentence | None = None


def judge(findings: Findings) -> Verdict:
    """Of the first target's rows. Raises `ValueError` without a row at the trace's own rate."""
    case = _Case(findings)
    pays, headline, advice = _headline(case)
    chosen = _chosen(case)
    settings = dict(chosen.changed.settings) if chosen else {}
    sentences = [
        _setting_sentence(case, chosen),
        *_highest_rate(case, chosen),
        *_spike(case),
        *_memory(case),
        _repeat(case),
        *_cache(case),
        *_doubts(case),
    ]
    return Verdict(
        pays=pays,
        headline=headline,
        sentences=sentences,
        settings=advice | settings,
        gain=_gain(case, chosen),
    )


def base_row(findings: Findings) -> Row:
    """The base line's at the trace's own rate, of the first target. Raises `ValueError` without one."""
    rows = [row for row in findings.rows if not (row.changed.settings or row.changed.target)]
    rates = [row for row in rows if row.load.kind == "rate"]
    if not rates:
        raise ValueError("a verdict needs a row of the base line at the trace's own rate")
    return min(rates, key=lambda row: abs(row.load.value - 1))


class _Case:
    """The rows of the first target, by variant and load."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.aims = findings.aims
        first = findings.rows[0].target if findings.rows else ""
        self.rows = [row for row in findings.rows if row.target == first]
        self.scores = {row.id: row.score for row in self.rows}
        self.base = base_row(findings)

    def score(self, row: Row) -> Score:
        return self.scores[row.id]

    def normal(self) -> list[Row]:
        """A row for every variant, at the rate of the base line's."""
        return [row for row in self.rows if row.load == self.base.load]

    def like(self, row: Row) -> list[Row]:
        return [each for each in self.rows if each.changed.settings == row.changed.settings]

    def mode(self, name: str) -> Row | None:
        """The variant that changes the mode to this one and nothing else, or the base line if it has it."""
        for row in self.normal():
            if row.changed.settings == {MODE: name}:
                return row
        return self.base if self._base_mode() == name else None

    def _base_mode(self) -> str:
        conditions = next(iter(self.findings.conditions.values()), None)
        return conditions.settings.get(MODE, "auto") if conditions else "auto"

    def continuous(self) -> Row | None:
        """`auto` batches whenever more than one is there."""
        return self.mode("continuous") or self.mode("auto")

    @property
    def overlap(self) -> Overlap:
        own = self.findings.own_overlap
        return own or Overlap(self.score(self.base).figures.overlap, [self.base.id])

    def holds(self, row: Row) -> Row | None:
        """The highest rate of a variant up to which all its measured rates meet the aims."""
        best = None
        for each in sorted((r for r in self.like(row) if r.load.kind == "rate"), key=lambda r: r.load.value):
            if misses(self.score(each), self.aims):
                break
            best = each
        return best


# ---- does batching pay -----------------------------------------------------------------------------------


def _headline(case: _Case) -> tuple[bool | None, Sentence, dict[str, str]]:
    """Whether it pays, why, and settings that follow from it whatever was measured."""
    overlap, base = case.overlap, case.score(case.base)
    if overlap.share < RARE:
        return False, _rarely(case, overlap), {"residency.policy": "pinned"}
    if base.figures.error_rate > case.aims.error_rate:
        text = (
            f"{base.figures.error_rate:.1%} of the requests were refused or failed at the normal rate: "
            f"look at admission (max_waiting, queue_timeout_s, context) before batching: {_why(base)}."
        )
        return None, Sentence("batching", text, [case.base.id]), {}
    alone = _alone(case)
    if alone is not None and case.aims.ttft_s is not None:
        value = case.score(alone).attended.ttft_p50
        if value is not None and value > case.aims.ttft_s:
            text = (
                f"Even one request at a time waits {value:.2f} s for its first token, wanted {case.aims.ttft_s:g} s: "
                "no way to schedule helps; take a smaller model, a stronger quantisation, shorter prompts or a GPU."
            )
            return None, Sentence("batching", text, [alone.id]), {}
    return (*_batching(case, overlap), {})


def _rarely(case: _Case, overlap: Overlap) -> Sentence:
    if overlap.rows:
        source = ""
    else:
        source = f" in the last {overlap.days:g} days ({overlap.num_requests:,} requests in the ledger)"
    start_s = next(iter(case.findings.start_s.values()), None)
    saved = f": a request that finds it asleep waits {start_s:.1f} s more" if start_s else ""
    text = (
        f"Requests overlapped {overlap.share:.0%} of the time{source}: keep the model resident{saved}; "
        "single mode is enough, continuous batching has nothing to do here."
    )
    return Sentence("batching", text, overlap.rows or [case.base.id])


def _why(score: Score) -> str:
    reason = next(iter(score.reasons), None)
    return f"most often “{reason}”" if reason else "no reason was given"


def _alone(case: _Case) -> Row | None:
    """One call at once, of the base line."""
    return next((row for row in case.like(case.base) if row.load.kind == "overlap" and row.load.value == 1), None)


def _batching(case: _Case, overlap: Overlap) -> tuple[bool | None, Sentence]:
    many, one = case.continuous(), case.mode("single")
    share = f"Requests overlapped {overlap.share:.0%} of the time"
    if many is None or one is None:
        text = f"{share}; whether batching pays was not measured: `homeai bench --modes` runs it beside single mode."
        return None, Sentence("batching", text, overlap.rows)
    reasons, cited = _advantages(case, many, one)
    rows = [*dict.fromkeys([*overlap.rows, many.id, one.id, *cited])]
    if reasons:
        return True, Sentence("batching", f"{share}, and continuous batching pays: {'; '.join(reasons)}.", rows)
    ratio = _ratio(case.score(many).attended.ttft_p95, case.score(one).attended.ttft_p95)
    compared = f" (TTFT p95 × {ratio:.2f})" if ratio else ""
    text = (
        f"{share}, but continuous batching does not pay on this machine: it is hardly faster than one after "
        f"another{compared}. Prefix reuse, a smaller model or a GPU change more."
    )
    return False, Sentence("batching", text, rows)


def _advantages(case: _Case, many: Row, one: Row) -> tuple[list[str], list[str]]:
    reasons: list[str] = []
    cited: list[str] = []
    ours, theirs = case.score(many), case.score(one)
    if not misses(ours, case.aims) and (missed := misses(theirs, case.aims)):
        reasons.append(f"it meets the targets, one after another does not ({', '.join(missed)})")
    both = _largest_overlap(case, many, one)
    if both is not None:
        ratio = _ratio(case.score(both[0]).figures.tokens_per_s, case.score(both[1]).figures.tokens_per_s)
        if ratio is not None and ratio >= PAYS_THROUGHPUT:
            reasons.append(f"{ratio:.1f} times the tokens per second with {both[0].load.label}")
            cited += [both[0].id, both[1].id]
    held, held_one = case.holds(many), case.holds(one)
    if held is not None and held_one is not None and held.load.value >= PAYS_RATE * held_one.load.value:
        reasons.append(f"it holds {held.load.value / held_one.load.value:.1f} times the rate")
        cited += [held.id, held_one.id]
    slower = _ratio(theirs.attended.ttft_p95, ours.attended.ttft_p95)
    if slower is not None and slower >= PAYS_LATENCY:
        reasons.append(f"first tokens come {slower:.1f} times as soon at p95")
    return reasons, cited


def _largest_overlap(case: _Case, many: Row, one: Row) -> tuple[Row, Row] | None:
    ours = {row.load.value: row for row in case.like(many) if row.load.kind == "overlap"}
    theirs = {row.load.value: row for row in case.like(one) if row.load.kind == "overlap"}
    most = max(ours.keys() & theirs.keys(), default=0.0)
    return (ours[most], theirs[most]) if most > 1 else None


# ---- which setting ---------------------------------------------------------------------------------------


def _chosen(case: _Case) -> Row | None:
    """Of the settings that meet the aims at the normal rate the cheapest; None: none does.

    Among equally cheap ones: what is in force already, then single mode where nothing overlaps, then who holds more.
    """
    good = [row for row in case.normal() if not misses(case.score(row), case.aims)]
    if not good:
        return None
    costs = {row.id: _cost(case.score(row)) or 0.0 for row in good}
    limit = min(costs.values()) * (1 + TIE)
    cheap = [row for row in good if costs[row.id] <= limit]
    is_rare = case.overlap.share < RARE

    def preference(row: Row) -> tuple[bool, bool, float, float]:
        held = case.holds(row)
        is_single = row.changed.settings == {MODE: "single"}
        return row is case.base, is_rare and is_single, held.load.value if held else 0.0, -costs[row.id]

    return max(cheap, key=preference)


def _cost(score: Score) -> float | None:
    """Money where prices are known, else the time that the engine worked, per accepted answer."""
    return score.figures.cost if score.figures.cost is not None else score.figures.busy_s_per_answer


def _cost_words(case: _Case, score: Score) -> str:
    if score.figures.cost is not None:
        return f"{score.figures.cost:.5f} {case.findings.prices.currency} per accepted answer"
    if score.figures.busy_s_per_answer is not None:
        return f"{score.figures.busy_s_per_answer:.2f} s of computing per accepted answer"
    return "cost not known"


def _setting_sentence(case: _Case, chosen: Row | None) -> Sentence:
    rows = case.normal()
    if chosen is None:
        best = min(rows, key=lambda row: excess(case.score(row), case.aims))
        missed = ", ".join(misses(case.score(best), case.aims))
        text = f"No setting meets the targets at the normal rate; “{best.variant}” comes closest: {missed}."
        return Sentence("setting", text, [best.id])
    score = case.score(chosen)
    others = [row for row in rows if row is not chosen]
    compared = f", the least of {len(rows)} that were measured" if others else ""
    missed_by_base = misses(case.score(case.base), case.aims)
    base = f" The base line misses: {', '.join(missed_by_base)}." if chosen is not case.base and missed_by_base else ""
    text = f"“{chosen.variant}” meets the targets at {_cost_words(case, score)}{compared}.{base}"
    return Sentence("setting", text, [chosen.id, *(row.id for row in others)])


def _highest_rate(case: _Case, chosen: Row | None) -> list[Sentence]:
    row = chosen or case.base
    held = case.holds(row)
    if held is None:
        lowest = min((r for r in case.like(row) if r.load.kind == "rate"), key=lambda r: r.load.value)
        return [Sentence("rate", f"Not even {_rate(case, lowest)} meets them.", [lowest.id])]
    higher = [r for r in case.like(row) if r.load.kind == "rate" and r.load.value > held.load.value]
    beyond = min(higher, key=lambda r: r.load.value, default=None)
    text = f"The highest rate that meets them is {_rate(case, held)}"
    if beyond is None:
        return [Sentence("rate", f"{text}, the highest that was tried.", [held.id])]
    missed = ", ".join(misses(case.score(beyond), case.aims))
    return [Sentence("rate", f"{text}; at {_rate(case, beyond)}: {missed}.", [held.id, beyond.id])]


def _rate(case: _Case, row: Row) -> str:
    return f"{case.score(row).figures.offered_rps:.2f} requests/s ({row.load.label})"


def _gain(case: _Case, chosen: Row | None) -> Sentence | None:
    """What the change brings at the normal rate, against the base line."""
    if chosen is None or chosen is case.base:
        return None
    before, after = case.score(case.base), case.score(chosen)
    pairs = (
        ("TTFT p95", before.attended.ttft_p95, after.attended.ttft_p95, "s"),
        ("e2e p95", before.attended.e2e_p95, after.attended.e2e_p95, "s"),
        ("queue p95", before.figures.queue_p95, after.figures.queue_p95, "s"),
        ("output", before.figures.tokens_per_s, after.figures.tokens_per_s, "tok/s"),
    )
    words = [
        f"{name} {old:.3g} → {new:.3g} {unit}" for name, old, new, unit in pairs if old is not None and new is not None
    ]
    return Sentence("gain", f"Expected: {', '.join(words)}.", [case.base.id, chosen.id])


# ---- how it behaves --------------------------------------------------------------------------------------


def _spike(case: _Case) -> list[Sentence]:
    row = next((row for row in case.like(case.base) if row.load.kind == "spike"), None)
    if row is None:
        return [Sentence("spike", "What happens in a spike was not measured.")]
    score = case.score(row)
    num_calls = sum(each.num_calls for each in score.classes.values())
    figures = score.figures
    if figures.num_rejected:
        share = figures.num_rejected / max(1, num_calls)
        text = f"In a spike it rejects: {share:.0%} of the requests were turned away; the queue stays bounded."
        return [Sentence("spike", text, [row.id])]
    before, during, after = score.phases or [None, None, None]
    waits = f"first tokens take {_seconds(before)} before, {_seconds(during)} in and {_seconds(after)} after it"
    if before is None or after is None:
        return [Sentence("spike", f"The spike was too short to tell: {waits}.", [row.id])]
    if after <= 2 * before + 0.25 and not figures.num_failed:
        return [Sentence("spike", f"In a spike the queue stays bounded and empties again: {waits}.", [row.id])]
    return [Sentence("spike", f"In a spike latency grows and does not come back in time: {waits}.", [row.id])]


def _memory(case: _Case) -> list[Sentence]:
    figures = case.score(case.base).figures
    if figures.num_preemptions is None:
        return [Sentence("memory", "Preemptions and KV use cannot be read from this server.")]
    conditions = next(iter(case.findings.conditions.values()), None)
    context = f" with a context of {conditions.context} tokens" if conditions else ""
    peak = f", at most {figures.kv_peak:.0%} of the KV cache in use" if figures.kv_peak is not None else ""
    counts = f"{figures.num_preemptions:g} preemptions{peak}"
    late = figures.num_preemptions_2 or 0.0
    problems = [
        *([f"the cache had no room {figures.num_out_of_room:g} times"] if figures.num_out_of_room else []),
        *([f"the engine started anew {figures.num_restarts:g} times"] if figures.num_restarts else []),
        *(["preemptions grow from half to half"] if late > 0.7 * figures.num_preemptions and late > 3 else []),
    ]
    if problems:
        text = f"KV pressure is not stable{context}: {'; '.join(problems)} ({counts}). Fewer sequences, or more cells."
    else:
        text = f"KV pressure is stable{context}: {counts}."
    return [Sentence("memory", text, [case.base.id])]


def _repeat(case: _Case) -> Sentence:
    repeated = [row for row in case.rows if len(row.scores) > 1]
    if not repeated:
        return Sentence("repeat", "One round only: `--rounds 2` tells whether a repeat agrees.")
    worst = max(repeated, key=spread)
    apart = spread(worst)
    if apart <= AGREEMENT:
        text = f"The rounds agree: throughput and median TTFT within {max(apart, 0.001):.1%} in every row."
        return Sentence("repeat", text, [row.id for row in repeated])
    num_good = sum(spread(row) <= AGREEMENT for row in repeated)
    where = f"“{worst.variant}, {worst.load.label}”"
    text = f"The rounds differ by {apart:.0%} in {where}; {num_good} of {len(repeated)} rows agree."
    return Sentence("repeat", text, [worst.id])


def spread(row: Row) -> float:
    """How far the rounds of a row are apart, in throughput or median TTFT, of their middle. TTFTs are compared from
    20 ms on: below, it is the clock that differs."""
    throughputs = [score.figures.tokens_per_s for score in row.scores]
    ttfts = [max(score.attended.ttft_p50, 0.02) for score in row.scores if score.attended.ttft_p50 is not None]
    return max(_apart(throughputs), _apart(ttfts))


def _apart(values: Sequence[float]) -> float:
    middle = (max(values) + min(values)) / 2 if values else 0.0
    return (max(values) - min(values)) / middle if middle else 0.0


def _cache(case: _Case) -> list[Sentence]:
    cached = case.score(case.base).figures.cached
    if cached is None or cached < MUCH_CACHED:
        return []
    text = f"{cached:.0%} of the prompt tokens were in the cache already: prefix reuse does much of the work here."
    return [Sentence("cache", text, [case.base.id])]


def _doubts(case: _Case) -> list[Sentence]:
    """Why the figures may be wrong."""
    doubts = []
    figures = case.score(case.base).figures
    first, second = figures.tokens_per_s_1, figures.tokens_per_s_2
    if abs(first - second) > STEADY * max(first, second):
        text = f"The two halves differ ({first:.3g} and {second:.3g} tok/s): not steady yet, take a longer --duration."
        doubts.append(Sentence("doubt", text, [case.base.id]))
    late = [row for row in case.rows if (case.score(row).figures.lateness_p95 or 0.0) > LATE_S]
    if late:
        text = "The bench itself sent its requests too late: this machine is too busy to measure so much."
        doubts.append(Sentence("doubt", text, [row.id for row in late]))
    return doubts


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def config_lines(settings: Mapping[str, str]) -> str:
    """The lines of a configuration file."""
    tree: Tree = {}
    for key, value in settings.items():
        tree = merged(tree, nested(key.split("."), parse_value(value)))
    return str(yaml.safe_dump(tree, sort_keys=False)).strip() if settings else ""
