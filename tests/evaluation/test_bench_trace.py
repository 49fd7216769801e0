"""What a bench asks for: the same for the same seed, shared exactly where it says so, and never anybody's text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from homeai.errors import ConfigError
from homeai.evaluation.bench import groups, own, trace
from homeai.evaluation.bench.groups import Sizes
from homeai.evaluation.bench.trace import Part, Trace, arrivals_of, text_of
from homeai.ledger import Ledger, LedgerRow, prefix_block_hashes
from tests.evaluation.bench_factories import create_call


def test_same_seed_gives_the_same_version_and_another_one_another() -> None:
    assert groups.household(11, 60).version == groups.household(11, 60).version
    assert groups.household(11, 60).version != groups.household(12, 60).version


def test_a_group_is_the_same_with_and_without_the_others() -> None:
    everything = groups.household(11, 300)
    assert groups.household(11, 300, groups=("agents",)).calls == tuple(
        call for call in everything.calls if call.group == "agents"
    )


def test_groups_are_what_they_are_called() -> None:
    calls = groups.household(11, 3600).calls
    of = {name: [call for call in calls if call.group == name] for name in groups.GROUPS}
    assert max(c.max_tokens for c in of["chat"]) < 500
    assert min(c.num_prompt_tokens for c in of["long"]) >= 600
    assert any(c.cancel_after_s is not None for c in of["agents"])
    assert len({c.max_tokens for c in of["agents"]}) > 20
    gaps = [b.at - a.at for a, b in zip(of["agents"], of["agents"][1:], strict=False)]
    assert sum(gap < 0.1 for gap in gaps) > len(gaps) / 5
    assert all(c.system[0].name == "tools" for c in of["agents"] if c.source == "agent")


def test_length_follows_its_distribution() -> None:
    calls = groups.household(11, 36_000, groups=("long",)).calls
    lengths = sorted(call.num_prompt_tokens for call in calls)
    assert lengths[len(lengths) // 2] == pytest.approx(Sizes().document.median, rel=0.1)


def test_equal_parts_are_equal_text_and_a_salt_changes_all_words_and_no_length() -> None:
    first, second = [Part("shared", 50), Part("a", 5)], [Part("shared", 50), Part("b", 5)]
    assert text_of(first, "x").split()[:50] == text_of(second, "x").split()[:50]
    assert text_of(first, "x").split()[50:] != text_of(second, "x").split()[50:]
    assert text_of(first, "x").split()[:50] != text_of(first, "y").split()[:50]
    assert len(text_of(first, "y").split()) == 55


def test_simulated_and_sent_prompts_share_the_same_tokens() -> None:
    one, other = (create_call(prompt=[Part("s", 20), Part(name, 4)]) for name in "ab")
    first, second = arrivals_of(Trace.of("t", [one, other]), "x")
    assert first.prompt_token_ids[:21] == second.prompt_token_ids[:21]
    assert len(first.prompt_token_ids) == 25


def test_file_gives_the_same_trace_back(tmp_path: Path) -> None:
    made = groups.household(11, 120)
    trace.save(made, tmp_path / "t.jsonl")
    assert trace.load(tmp_path / "t.jsonl").calls == made.calls
    assert trace.load(tmp_path / "t.jsonl").version == made.version


@pytest.mark.parametrize(
    "line",
    ["{}", "no json", '{"at":-1,"group":"g","source":"s","fairness_class":"c","prompt":[["a",1]],"max_tokens":1}'],
)
def test_bad_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "t.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=r"t\.jsonl, line 1: "):
        trace.load(tmp_path / "t.jsonl")


def test_faster_trace_asks_the_same_in_less_time() -> None:
    made = groups.household(11, 120)
    quick = made.faster(4)
    assert quick.duration_s == 30
    assert [call.prompt for call in quick.calls] == [call.prompt for call in made.calls]
    assert quick.calls[-1].at == made.calls[-1].at / 4


def test_spike_is_so_much_denser_than_what_surrounds_it() -> None:
    made = Trace.of("t", [create_call(float(second), prompt=[Part(str(second), 3)]) for second in range(300)], 300)
    spiked = made.spiked(4)
    begin, end = made.spike_window(4)
    inside = [call for call in spiked.calls if begin <= call.at < end]
    assert len(inside) / (end - begin) == pytest.approx(4.0, rel=0.05)
    outside = len(spiked.calls) - len(inside)
    assert outside / (spiked.duration_s - (end - begin)) == pytest.approx(1.0, rel=0.05)
    assert len({call.prompt[0].name for call in inside}) == len(inside)


# ---- from the ledger -------------------------------------------------------------------------------------


def row(at: float, tokens: list[int], **changes: object) -> LedgerRow:
    defaults: dict[str, object] = {
        "request_id": f"r{at}",
        "arrival": at,
        "api": "/v1/chat/completions",
        "source": "anna-phone",
        "fairness_class": "interactive",
        "model": "m",
        "num_prompt_tokens": len(tokens),
        "num_output_tokens": 7,
        "prefix_hashes": prefix_block_hashes(tokens),
        "e2e_s": 2.0,
        "status": 200,
        "finish_reason": "stop",
    }
    return LedgerRow(**defaults | changes)  # type: ignore[arg-type]


def written(path: Path, *rows: LedgerRow) -> list[own.LedgerCall]:
    ledger = Ledger(path, retention_days=0)
    ledger.start()
    for each in rows:
        ledger.record(each)
    ledger.close()
    return own.read(path, 3600, time.time())


def test_trace_from_the_ledger_has_times_lengths_and_what_is_shared(tmp_path: Path) -> None:
    now = time.time() - 100
    shared = list(range(130))
    rows = written(tmp_path / "l.db", row(now, [*shared, 1]), row(now + 5, [*shared, 2, 3]))
    made = own.trace_of(rows)
    assert [round(call.at, 3) for call in made.calls] == [0.0, 5.0]
    assert [call.num_prompt_tokens for call in made.calls] == [131, 132]
    first, second = (text_of(call.prompt, "x").split() for call in made.calls)
    assert first[:128] == second[:128]
    assert first[128:] != second[128:131]
    assert [call.max_tokens for call in made.calls] == [7, 7]


def test_trace_from_the_ledger_can_hide_names(tmp_path: Path) -> None:
    now = time.time() - 100
    rows = written(tmp_path / "l.db", row(now, [1]), row(now + 1, [2], source="ben"))
    assert {call.source for call in own.trace_of(rows, hides_names=True).calls} == {"source-0", "source-1"}


def test_refused_requests_and_embeddings_are_no_calls(tmp_path: Path) -> None:
    now = time.time() - 100
    rows = written(tmp_path / "l.db", row(now, [1], num_output_tokens=0, status=429), row(now + 1, [2]))
    assert len(own.trace_of(rows).calls) == 1


def test_client_that_left_leaves_again(tmp_path: Path) -> None:
    rows = written(tmp_path / "l.db", row(time.time() - 100, [1], finish_reason="abort", status=499, e2e_s=1.5))
    (call,) = own.trace_of(rows).calls
    assert call.cancel_after_s == 1.5
    assert call.max_tokens > 7


def test_busiest_window_has_the_most_calls() -> None:
    made = Trace.of("t", [create_call(at) for at in (0.0, 50.0, 100.0, 101.0, 102.0, 200.0)])
    window = own.busiest(made, 10)
    assert [call.at for call in window.calls] == [0.0, 1.0, 2.0]
    assert window.duration_s == 10


def test_no_ledger_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no ledger at"):
        own.read(tmp_path / "none.db", 10, time.time())
