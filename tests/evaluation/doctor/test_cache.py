"""The prefix cache defeated: by a line, by a history that loses its beginning, by what gave way."""

from __future__ import annotations

import pytest

from homeai.config import load
from homeai.evaluation.doctor.checks import prefix_cache
from homeai.evaluation.doctor.report import yaml_lines
from homeai.patterns import compiled
from homeai.vitals import BeginningStatus, ChangingLine
from tests.evaluation.doctor.factories import (
    create_config,
    create_facts,
    create_row,
    create_slice,
    create_status,
    create_vitals,
)


def changing(num_changes: int = 9, **changes: object) -> BeginningStatus:
    fields = {"message": 0, "role": "system", "line": 2, "mask": "The time is #:#.", "num_lost_chars": 4000} | changes
    return BeginningStatus(
        source="speaker",
        num_prompts=10,
        lines=[ChangingLine(num_changes=num_changes, **fields)],  # type: ignore[arg-type]
    )


def found(*beginnings: BeginningStatus, **facts: object) -> object:
    return create_facts(vitals=create_vitals(beginnings=beginnings), **facts)


def test_line_and_source_are_named_and_a_rule_written_that_finds_the_line() -> None:
    finding = prefix_cache.check(found(changing()))
    assert finding is not None
    assert "line 2 of message 1 (system)" in finding.evidence[0]
    assert "“The time is #:#.”" in finding.evidence[0]
    assert "speaker" in finding.title
    rule = r"The time is \w+:\w+\."
    assert rule in yaml_lines(finding)
    assert compiled(rule).search("The time is 12:34.") is not None


def test_rule_joins_those_that_the_source_has() -> None:
    source = "[{name: speaker, class: voice, volatile: [{pattern: 'a+', action: drop}]}]"
    finding = prefix_cache.check(found(changing(), config=create_config(("sources", source))))
    (entry,) = load(None, env={}, overrides=[*finding.settings.items()]).sources
    assert (entry.name, entry.fairness_class) == ("speaker", "voice")
    assert [(rule.pattern, rule.action) for rule in entry.volatile] == [
        ("a+", "drop"),
        (r"The time is \w+:\w+\.", "move"),
    ]


@pytest.mark.parametrize("mask", ["It is @, # @ #, #:# @.", "cch=#; (v#) [a|b]* $5^", "a\\b"])
def test_every_mask_becomes_a_pattern_that_the_settings_take(mask: str) -> None:
    pattern = prefix_cache.pattern_of(mask)
    assert compiled(pattern).search(mask.replace("#", "04f3a").replace("@", "Monday")) is not None


def test_source_that_is_private_or_has_no_mask_is_told_the_place_only() -> None:
    finding = prefix_cache.check(found(changing(mask=None)))
    assert finding.settings == {}
    assert "“" not in finding.evidence[0]


def test_lines_in_another_order_are_to_be_sorted() -> None:
    finding = prefix_cache.check(found(changing(num_moves=8)))
    assert "sort" in finding.advice[0]
    assert finding.settings == {}


def test_change_in_a_later_message_is_the_client_s_to_move() -> None:
    finding = prefix_cache.check(found(changing(message=3, role="user", mask=None)))
    assert "end of what it sends" in finding.advice[0]


def test_prompt_that_is_no_chat_has_no_rules_and_is_the_client_s_to_change() -> None:
    assert prefix_cache.check(found(changing(role="prompt", mask=None))).settings == {}


@pytest.mark.parametrize("num_changes", [2, 4])
def test_line_that_changes_now_and_then_is_fine(num_changes: int) -> None:
    assert prefix_cache.check(found(changing(num_changes))) is None


def test_history_that_loses_its_beginning_at_every_turn_is_found() -> None:
    often = BeginningStatus(source="chat", num_prompts=10, num_shortened=3, num_lost_chars_shortened=5000)
    assert "chat" in prefix_cache.check_shortened(found(often)).title
    seldom = BeginningStatus(source="chat", num_prompts=20, num_shortened=3, num_lost_chars_shortened=5000)
    assert prefix_cache.check_shortened(found(seldom)) is None


def resending(num_cached: int) -> list[object]:
    blocks = [str(i) for i in range(30)]
    return [
        create_row(i, source="editor", num_prompt=2000, num_cached=num_cached if i else 0, prefix_hashes=blocks)
        for i in range(6)
    ]


def test_beginnings_that_come_again_and_are_not_found_are_counted() -> None:
    finding = prefix_cache.check_resent(create_facts(rows=resending(200)))
    assert finding is not None
    assert "9,600 tokens, of which 1,000" in finding.evidence[0]
    assert prefix_cache.check_resent(create_facts(rows=resending(1000))) is None
    assert prefix_cache.check_resent(create_facts(rows=resending(0)[:3])) is None


def test_why_they_are_gone_decides_what_to_change() -> None:
    refused = BeginningStatus(source="editor", num_prompts=6, num_cache_refused=6)
    asked = prefix_cache.check_resent(create_facts(rows=resending(0), vitals=create_vitals(beginnings=[refused])))
    assert "cache_prompt" in asked.cause
    evicting = create_vitals(create_slice(num_evictions=40))
    on_cpu = prefix_cache.check_resent(create_facts(rows=resending(0), vitals=evicting))
    assert on_cpu.settings == {"scheduler.prefix_cache_tokens": "8192"}
    on_gpu = create_facts(rows=resending(0), vitals=evicting, status=create_status(device="cuda"))
    assert prefix_cache.check_resent(on_gpu).settings == {
        "scheduler.max_cached_seqs": "48",
        "scheduler.host_cache_mb": "1024",
    }
    small = create_config(("scheduler.prefix_cache_tokens", "1000"))
    bounded = create_facts(rows=resending(0), vitals=evicting, status=create_status(device="cuda"), config=small)
    assert prefix_cache.check_resent(bounded).settings == {"scheduler.prefix_cache_tokens": "8192"}
