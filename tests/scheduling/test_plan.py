"""What a plan says of the work in it."""

from __future__ import annotations

import pytest

from homeai.scheduling.plan import NEAR_TOKENS, Chunk, StepPlan


@pytest.mark.parametrize(
    ("start", "num_tokens"), [(0, 1), (0, 40), (100, 600), (NEAR_TOKENS - 1, 1), (NEAR_TOKENS, 3), (5000, 20)]
)
def test_what_tokens_look_at_is_summed_over_them(start: int, num_tokens: int) -> None:
    chunk = Chunk("a", 0, start, num_tokens, 0)
    seen = [place + 1 for place in range(start, start + num_tokens)]
    assert chunk.num_context_tokens == seen[-1]
    assert chunk.num_attended_tokens == sum(seen)
    assert chunk.num_near_tokens == sum(min(count, NEAR_TOKENS) for count in seen)


def test_step_counts_what_its_chunks_do() -> None:
    plan = StepPlan(chunks=[Chunk("a", 0, 700, 1, 1), Chunk("b", 1, 0, 20, 0)])
    assert (plan.num_outputs, plan.num_context_tokens) == (1, 721)
    assert (plan.num_attended_tokens, plan.num_near_tokens) == (701 + 210, 512 + 210)
