from __future__ import annotations

import pytest

from homeai.evaluation.cost_model import StepShape
from homeai.evaluation.plan.estimate import estimate
from homeai.evaluation.plan.speed import counts, prefill_s, speeds

COST = estimate("rtx-4090", "8b-q4")


def test_streams_double_up_to_the_most() -> None:
    assert counts(1) == [1]
    assert counts(8) == [1, 2, 4, 8]
    assert counts(12) == [1, 2, 4, 8, 12]


def test_more_streams_are_faster_together_and_slower_each() -> None:
    found = speeds(COST, [1, 2, 4, 8], 4096, 1024)
    assert [each.total_tok_s for each in found] == sorted(each.total_tok_s for each in found)
    assert [each.stream_tok_s for each in found] == sorted((each.stream_tok_s for each in found), reverse=True)


def test_prompt_is_read_in_chunks_and_the_last_of_many_waits_for_all() -> None:
    chunks = [
        StepShape(512, 0, 512, 131_328, 512),
        StepShape(512, 0, 1024, 393_472, 1024),
        StepShape(100, 0, 1124, 107_450, 1124),
    ]
    assert prefill_s(COST, 1124) == pytest.approx(sum(map(COST.step_s, chunks)))
    alone, eight = speeds(COST, [1, 8], 4096, 1124)
    assert eight.last_ttft_s == pytest.approx(8 * alone.ttft_s)
