"""What a step may carry."""

from __future__ import annotations

import pytest

from homeai.scheduling.budget import HEADROOM, Budget
from tests.scheduling.factories import MACHINES, teach


def test_step_carries_what_the_tightest_target_allows() -> None:
    budget = Budget(512, patience_s=1.0, min_chunk_tokens=16)
    teach(budget.times, *MACHINES[0])
    count = budget.prefill_tokens(8, 2000, 0.25)
    assert budget.times.predict(count, 8, 2000) <= 0.25 * HEADROOM < budget.times.predict(count + 4, 8, 2000)


def test_without_streams_a_step_is_as_long_as_the_next_one_may_wait() -> None:
    budget = Budget(512, patience_s=0.3, min_chunk_tokens=16)
    teach(budget.times, *MACHINES[0])
    assert budget.times.predict(budget.prefill_tokens(0, 0, None), 0, 0) == pytest.approx(0.3, rel=0.05)


def test_prefill_goes_on_where_no_target_can_be_held() -> None:
    budget = Budget(512, patience_s=1.0, min_chunk_tokens=16)
    teach(budget.times, *MACHINES[2])
    assert budget.prefill_tokens(8, 2000, 0.05) == 16


def test_ceiling_holds_on_a_fast_machine() -> None:
    budget = Budget(512, patience_s=1.0, min_chunk_tokens=16)
    teach(budget.times, *MACHINES[1])
    assert budget.prefill_tokens(8, 2000, 0.25) == 504
