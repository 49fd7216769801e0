"""What may stand in one table."""

from __future__ import annotations

import msgspec
import pytest

from homeai.evaluation.bench.conditions import Changed, Conditions, differences, unknowns
from homeai.evaluation.bench.identity import quantisation
from tests.evaluation.bench_factories import CONDITIONS


@pytest.mark.parametrize(("said", "called"), [("Q4_K - Medium", "Q4_K_M"), ("Q8_0", "Q8_0"), ("unknown", "unknown")])
def test_quantisation_is_called_the_same_by_every_server(said: str, called: str) -> None:
    assert quantisation(said) == called


def changed_to(**fields: object) -> Conditions:
    return msgspec.structs.replace(CONDITIONS, **fields)


@pytest.mark.parametrize("field", ["model_hash", "tokenizer", "quantisation", "context", "hardware", "api", "lengths"])
def test_fixed_part_that_differs_is_named_with_both_sides(field: str) -> None:
    (problem,) = differences(CONDITIONS, changed_to(**{field: "other"}), Changed(target=True))
    assert "other there" in problem
    assert getattr(CONDITIONS, field) in problem


def test_what_was_changed_on_purpose_may_differ_and_nothing_else() -> None:
    changed = Changed(settings={"scheduler.mode": "single"})
    assert not differences(CONDITIONS, changed_to(settings={"scheduler.mode": "single"}), changed)
    both = {"scheduler.mode": "single", "scheduler.kv_cells": "8192"}
    assert differences(CONDITIONS, changed_to(settings=both), changed) == [
        "scheduler.kv_cells: its default here, 8192 there"
    ]


def test_what_follows_from_a_change_may_differ() -> None:
    changed = Changed(settings={"scheduler.kv_layout": "partitioned"})
    other = changed_to(context="512", settings={"scheduler.mode": "auto", "scheduler.kv_layout": "partitioned"})
    assert not differences(CONDITIONS, other, changed)


def test_another_target_may_be_another_program_with_other_settings() -> None:
    assert not differences(CONDITIONS, changed_to(server="llama-server b1", settings={}), Changed(target=True))


def test_unknown_is_said_and_not_flagged() -> None:
    other = changed_to(model_hash="unknown")
    assert not differences(CONDITIONS, other, Changed(target=True))
    assert unknowns([CONDITIONS, other]) == ["homeai 1: model hash not known, taken for equal"]
