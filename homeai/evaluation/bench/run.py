"""Runs an agenda: round by round, variant by variant, load by load. What came of each play is handed on at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from homeai.evaluation.bench import groups
from homeai.evaluation.bench.agenda import Loads, is_too_much, played, repeats_of, salt_of
from homeai.evaluation.bench.client import failures
from homeai.evaluation.bench.conditions import FORCED, Changed, differences, unknowns
from homeai.evaluation.bench.groups import Sizes
from homeai.evaluation.bench.records import CallRecord, Ending, Play
from homeai.evaluation.bench.rows import Findings, Flag, Load, Row
from homeai.evaluation.bench.score import Score, median_of, score
from homeai.evaluation.bench.targets import Target
from homeai.evaluation.bench.trace import Trace

SETTLE_S: Final = 3.0  # of a play beside its trace, for estimates


class Opened(Protocol):
    """`start_s`: until its model was there; None: not known."""

    @property
    def target(self) -> Target: ...
    @property
    def start_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """`open` starts or reaches it. `target` is its name for people."""

    target: str
    changed: Changed
    open: Callable[[], AbstractAsyncContextManager[Opened]]

    @property
    def name(self) -> str:
        return Row(id="", target=self.target, changed=self.changed, load=Load("rate", 1.0)).variant


class Watcher(Protocol):
    """Who looks on: a terminal, a database."""

    def begins(self, expected_s: float) -> None: ...
    def starts(self, variant: str) -> None: ...
    def plays(self, row: Row, round_number: int, num_calls: int, expected_s: float) -> None: ...
    def answered(self, record: CallRecord) -> None: ...
    def played(self, row: Row, round_number: int, play: Play) -> None: ...
    def skips(self, row_label: str, expected_s: float) -> None: ...


@dataclass
class Bench:
    """One bench. `run` fills `findings`, and is their only writer."""

    findings: Findings
    trace: Trace
    sizes: Sizes
    loads: Loads
    variants: Sequence[Variant]
    watcher: Watcher
    _rows: dict[tuple[str, Load], Row] = field(default_factory=dict)

    async def run(self) -> None:
        self.watcher.begins(self.expected_s())
        for number in range(1, self.findings.num_rounds + 1):
            for variant in self.variants:
                self.watcher.starts(variant.name)
                async with variant.open() as opened:
                    await self._variant(variant, opened, number)
        self.findings.notes += unknowns(self.findings.conditions.values())

    def expected_s(self) -> float:
        """At most so long, by the traces alone."""
        loads = [*(Load("rate", rate) for rate in self.loads.rates), *self._others()]
        return len(self.variants) * self.findings.num_rounds * sum(self._expected_s(load) for load in loads)

    async def _variant(self, variant: Variant, opened: Opened, number: int) -> None:
        if number == 1 and not self._admit(variant, opened):
            return
        if variant.name not in self.findings.conditions:
            return
        await opened.target.play(self._warm_up(), f"{self.findings.salt}warm")
        for load in self._loads(variant, number):
            await self._play(variant, opened.target, load, number)

    def _admit(self, variant: Variant, opened: Opened) -> bool:
        """Beside the base line, or flagged."""
        findings, conditions = self.findings, opened.target.conditions
        if findings.conditions:
            base = next(iter(findings.conditions.values()))
            if problems := differences(base, conditions, variant.changed):
                findings.flags.append(Flag(variant.name, problems))
                return False
        findings.conditions[variant.name] = conditions
        findings.memory[variant.name] = opened.target.memory
        if opened.start_s is not None:
            findings.start_s[variant.name] = opened.start_s
        return True

    def _loads(self, variant: Variant, number: int) -> Iterator[Load]:
        """Rates upwards until one is too much; in later rounds the same ones again."""
        for rate in self.loads.rates:
            load = Load("rate", rate)
            if number > 1 and (variant.name, load) not in self._rows:
                self.watcher.skips(load.label, self._expected_s(load))
                continue
            yield load
            # A lower rate that is too much does not keep the normal one from being measured.
            if number == 1 and rate >= 1 and is_too_much(self._rows[variant.name, load], self.findings.aims):
                for higher in self.loads.rates[self.loads.rates.index(rate) + 1 :]:
                    left_out = Load("rate", higher)
                    self.watcher.skips(left_out.label, self._expected_s(left_out))
                break
        yield from self._others()

    def _others(self) -> list[Load]:
        spike = [Load("spike", self.loads.spike)] if self.loads.spike is not None else []
        return [*spike, *(Load("overlap", count) for count in self.loads.overlaps)]

    async def _play(self, variant: Variant, target: Target, load: Load, number: int) -> None:
        trace, repeats = self._trace(load), repeats_of(load)
        row = self._row(variant, load)
        self.watcher.plays(row, number, repeats * len(trace.calls), self._expected_s(load))
        scores = []
        for repeat in range(repeats):
            salt = salt_of(self.findings.salt, load, number, repeat)
            play = await target.play(trace, salt, self.watcher.answered)
            self._note_lengths(variant, target, trace, play)
            scores.append(self._score(play, trace, load))
        row.scores.append(median_of(scores))
        self.watcher.played(row, number, play)

    def _score(self, play: Play, trace: Trace, load: Load) -> Score:
        return score(
            play,
            offered_s=trace.duration_s,
            weights=self.findings.weights,
            prices=self.findings.prices,
            spike=self.trace.spike_window(load.value) if load.kind == "spike" else None,
            reasons=failures(play.records),
        )

    def _note_lengths(self, variant: Variant, target: Target, trace: Trace, play: Play) -> None:
        """An answer that ends before its length makes throughput and times smaller, and no two plays alike."""
        num_short = sum(
            record.ending is Ending.COMPLETED and record.num_output_tokens < call.max_tokens
            for record, call in zip(play.records, trace.calls, strict=True)
        )
        note = f"{variant.name}: not all answers went on for as long as the trace says; its figures are not comparable"
        if target.conditions.lengths == FORCED and num_short and note not in self.findings.notes:
            self.findings.notes.append(note)

    def _row(self, variant: Variant, load: Load) -> Row:
        key = (variant.name, load)
        if key not in self._rows:
            row = Row(id=f"R{len(self._rows) + 1}", target=variant.target, changed=variant.changed, load=load)
            self._rows[key] = row
            self.findings.rows.append(row)
        return self._rows[key]

    def _trace(self, load: Load) -> Trace:
        return played(self.trace, load, self.findings.seed, self.sizes)

    def _expected_s(self, load: Load) -> float:
        return repeats_of(load) * (self._trace(load).duration_s + SETTLE_S)

    def _warm_up(self) -> Trace:
        """Short calls at once: the first one of a fresh process is slower than all others, and a scheduler that learns
        how long steps take has seen none."""
        return groups.overlap(self.findings.seed, 8, Sizes().scaled(0.25))
