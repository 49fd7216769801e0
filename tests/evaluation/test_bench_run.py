"""Whole benches, with a simulated model: two houses, opposite verdicts, and advice that holds when it is followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from homeai.config import load
from homeai.errors import ConfigError
from homeai.evaluation.bench import agenda, bundle, groups, session
from homeai.evaluation.bench.agenda import Loads
from homeai.evaluation.bench.client import Progress
from homeai.evaluation.bench.conditions import Changed
from homeai.evaluation.bench.groups import Sizes
from homeai.evaluation.bench.html_report import page
from homeai.evaluation.bench.records import CallRecord, Play
from homeai.evaluation.bench.rows import Aims, Findings, Row, misses
from homeai.evaluation.bench.run import Opened
from homeai.evaluation.bench.score import Prices
from homeai.evaluation.bench.session import Wish
from homeai.evaluation.bench.store import Store
from homeai.evaluation.bench.targets import Target
from homeai.evaluation.bench.text_report import as_json, markdown
from homeai.evaluation.bench.trace import Trace
from homeai.evaluation.bench.verdict import base_row, judge
from tests.evaluation.factories import COST

SIZES = Sizes().scaled(0.3)
CONFIG = load(None, env={})


class Silent:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.expected_s = self.done_s = 0.0
        self.num_answered = 0

    def begins(self, expected_s: float) -> None:
        self.expected_s = expected_s

    def starts(self, variant: str) -> None: ...

    def plays(self, row: Row, round_number: int, num_calls: int, expected_s: float) -> None:
        self.done_s += expected_s

    def answered(self, record: CallRecord) -> None:
        self.num_answered += 1

    def skips(self, row_label: str, expected_s: float) -> None:
        self.done_s += expected_s

    def played(self, row: Row, round_number: int, play: Play) -> None: ...


def wish(trace: Trace, **changes: object) -> Wish:
    defaults: dict[str, object] = {
        "trace": trace,
        "loads": Loads((1.0,), None, ()),
        "aims": Aims(),
        "prices": Prices(),
        "command": "homeai bench",
        "cost": COST,
        "sizes": SIZES,
        "salt": "s",
    }
    return Wish(**defaults | changes)  # type: ignore[arg-type]


async def run(made: Wish, store: Store | None = None) -> Findings:
    return await session.bench(made, CONFIG, store, Silent())


def evening() -> Trace:
    """Busy enough for waiting in line to be felt."""
    return groups.household(11, 90.0, rate=2.0, sizes=SIZES)


def quiet() -> Trace:
    return groups.apart(11, 12, 8.0, SIZES)


async def test_house_that_overlaps_is_told_to_batch_and_the_advice_meets_what_the_base_line_missed() -> None:
    aims = Aims(ttft_s=1.0)
    made = wish(
        evening(),
        aims=aims,
        settings=[("scheduler.mode", "static")],
        changed=agenda.variants(["continuous", "single"], []),
    )
    findings = await run(made)
    verdict = judge(findings)
    assert misses(base_row(findings).score, aims)
    assert verdict.pays is True
    assert verdict.settings == {"scheduler.mode": "continuous"}
    again = await run(wish(evening(), aims=aims, settings=list(verdict.settings.items()), salt="other words"))
    assert not misses(base_row(again).score, aims)


async def test_house_that_does_not_overlap_is_told_that_single_is_enough_and_the_advice_holds() -> None:
    aims = Aims(ttft_s=0.3)
    made = wish(
        quiet(),
        aims=aims,
        settings=[("scheduler.mode", "window")],
        changed=agenda.variants(["continuous", "single"], []),
    )
    findings = await run(made)
    verdict = judge(findings)
    assert misses(base_row(findings).score, aims)
    assert verdict.pays is False
    assert "single mode is enough" in verdict.headline.text
    assert verdict.settings == {"residency.policy": "pinned", "scheduler.mode": "single"}
    again = await run(wish(quiet(), aims=aims, settings=list(verdict.settings.items()), salt="other words"))
    assert not misses(base_row(again).score, aims)


async def test_rates_rise_until_one_is_too_much() -> None:
    findings = await run(wish(evening(), loads=Loads((0.5, 1.0, 2.0, 4.0, 8.0, 16.0), None, ())))
    rates = [row.load.value for row in findings.rows]
    assert rates == sorted(rates)
    assert rates[-1] < 16.0
    assert agenda.is_too_much(findings.rows[-1], findings.aims)
    assert not agenda.is_too_much(findings.rows[-2], findings.aims)


async def test_rounds_measure_the_same_rows_again() -> None:
    made = wish(evening(), loads=Loads((1.0, 2.0, 8.0, 16.0), 4.0, (1, 8)), num_rounds=2)
    watcher = Silent()
    findings = await session.bench(made, CONFIG, None, watcher)
    assert all(len(row.scores) == 2 for row in findings.rows)
    assert [row.id for row in findings.rows] == [f"R{n}" for n in range(1, len(findings.rows) + 1)]
    assert watcher.done_s == pytest.approx(watcher.expected_s)  # the bar ends at its end


@pytest.mark.parametrize(("at_once", "num_plays"), [(2, 6), (8, 3)])
async def test_replay_at_once_is_so_short_that_it_is_played_again_and_again(at_once: int, num_plays: int) -> None:
    made, silent = wish(evening(), loads=Loads((1.0,), None, (at_once,))), Silent()
    findings = await session.bench(made, CONFIG, None, silent)
    assert silent.num_answered == len(made.trace.calls) + num_plays * at_once
    assert [len(row.scores) for row in findings.rows] == [1, 1]
    assert silent.done_s == silent.expected_s


async def test_rows_are_named_by_what_was_changed() -> None:
    changed = agenda.variants([], ["scheduler.max_num_seqs=2,16", "scheduler.kv_layout=partitioned"])
    findings = await run(wish(evening(), changed=changed))
    assert [row.changed.label for row in findings.rows] == [
        "base line",
        "max_num_seqs=2",
        "max_num_seqs=16",
        "kv_layout=partitioned",
    ]
    assert not findings.flags


async def test_same_seed_and_salt_give_the_same_figures() -> None:
    first, second = [await run(wish(evening())) for _ in range(2)]
    assert first.rows[0].scores == second.rows[0].scores


async def test_variant_under_other_conditions_is_flagged_and_not_tabled() -> None:
    """The trace's answer does not depend on the base line's own change of the context."""
    changed = [Changed(), Changed(settings={"scheduler.max_num_seqs": "4"})]
    made = wish(evening(), changed=changed)
    first, second = session.variants_of(made)
    other = wish(evening(), settings=[("scheduler.kv_cells", "8192")], changed=changed)
    mixed = [first, session.variants_of(other)[1]]
    findings = await _bench(made, mixed)
    assert [flag.variant for flag in findings.flags] == [second.name]
    assert "scheduler.kv_cells" in findings.flags[0].problems[0]
    assert {row.variant for row in findings.rows} == {"base line"}


async def test_answers_that_end_before_their_length_are_said() -> None:
    made = wish(evening())
    (whole,) = session.variants_of(made)

    @asynccontextmanager
    async def short() -> AsyncIterator[Opened]:
        async with whole.open() as opened:
            yield session.Opened(Short(opened.target))

    assert (await _bench(made, [whole])).notes == []
    (note,) = (await _bench(made, [replace(whole, open=short)])).notes
    assert note.startswith("base line: not all answers went on")


class Short:
    """Its last token is missing."""

    memory: Final[dict[str, int]] = {}

    def __init__(self, target: Target) -> None:
        self._target = target
        self.conditions = target.conditions

    async def play(self, trace: Trace, salt: str, on_end: Progress = lambda record: None) -> Play:
        play = await self._target.play(trace, salt, on_end)
        for record in play.records:
            record.num_output_tokens -= 1
        return play


async def _bench(made: Wish, variants: list[session.Variant]) -> Findings:
    from homeai.evaluation.bench.run import Bench
    from tests.evaluation.bench_factories import create_findings

    findings = create_findings(conditions={})
    await Bench(findings, made.trace, made.sizes, made.loads, variants, Silent()).run()
    return findings


async def test_what_was_measured_is_kept_and_reported_and_can_be_repeated(tmp_path: Path) -> None:
    store = Store(tmp_path / "bench.db")
    made = wish(evening(), loads=Loads((0.5, 1.0), 4.0, (1, 8)), changed=agenda.variants(["single"], []))
    findings = await run(made, store)
    loaded, trace = store.load(None)
    assert loaded == findings
    assert trace == made.trace
    assert [each.bench_id for each in store.list()] == [findings.bench_id]
    verdict = judge(loaded)

    text = markdown(loaded, verdict)
    assert all(f"| {row.id} |" in text for row in findings.rows)
    assert f'"trace_version":"{trace.version}"' in as_json(loaded, verdict).decode().replace(": ", ":")
    html = page(loaded, verdict, store.play(findings.bench_id, base_row(loaded).id))
    assert html.count("<svg") == 3
    assert "http" not in html.replace("http-equiv", "")
    assert "<script" not in html

    bundle.export(loaded, trace, tmp_path / "b.zip")
    manifest, again = bundle.read(tmp_path / "b.zip")
    assert again == trace
    assert manifest.aims == findings.aims
    assert manifest.memory["base line"]["kv"] > 0
    store.close()


def test_report_says_it_when_nothing_was_measured_yet(tmp_path: Path) -> None:
    store = Store(tmp_path / "bench.db")
    with pytest.raises(ConfigError, match="no bench was run yet"):
        store.load(None)
    store.close()


def test_what_is_no_bundle_is_said(tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_text("no zip")
    with pytest.raises(ConfigError, match="is no bundle"):
        bundle.read(tmp_path / "b.zip")


@pytest.mark.parametrize(
    ("modes", "controls", "message"),
    [
        (["fast"], [], "known are continuous"),
        ([], ["max_num_seqs"], "needs the form"),
        (["single"], ["scheduler.mode=single"], "given twice"),
    ],
)
def test_variants_that_make_no_sense_are_refused(modes: list[str], controls: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agenda.variants(modes, controls)


def test_loads_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="--rates 0"):
        Loads.checked([0.0], None, [])
    with pytest.raises(ConfigError, match="--spike 1"):
        Loads.checked([1.0], 1.0, [])
