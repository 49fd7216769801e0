from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise, takewhile

import pytest

from homeai.backends.simulated.runner import output_token
from homeai.evaluation import traces
from homeai.evaluation.workload import Arrival


@pytest.mark.parametrize("trace", traces.TRACES.values(), ids=traces.TRACES.keys())
def test_same_seed_gives_the_same_trace_in_order_of_time(trace: Callable[[int], list[Arrival]]) -> None:
    arrivals = trace(11)
    assert arrivals == trace(11) != trace(12)
    assert [a.at for a in arrivals] == sorted(a.at for a in arrivals)
    assert all(a.at >= 0 and a.max_tokens > 0 and a.prompt_token_ids for a in arrivals)


def test_household_has_the_load_generators_requests() -> None:
    """Counted there with the default model's tokenizer: `bench/loadgen.py --seed 11`."""
    arrivals = traces.household(11)
    assert Counter(a.fairness_class for a in arrivals) == {
        "voice": 31,
        "interactive": 14,
        "coding": 6,
        "background": 5,
    }
    num_tokens = Counter[str]()
    for arrival in arrivals:
        num_tokens[arrival.fairness_class] += len(arrival.prompt_token_ids)
    assert num_tokens == {"voice": 19127, "interactive": 1428, "coding": 5383, "background": 7505}
    assert sum(a.cancel_after_s is not None for a in arrivals) == 1
    assert arrivals[-1].at == pytest.approx(88.1407914917194)


def shared_length(arrivals: list[Arrival]) -> int:
    columns = zip(*(a.prompt_token_ids for a in arrivals), strict=False)
    return len(list(takewhile(lambda tokens: len(set(tokens)) == 1, columns)))


@pytest.mark.parametrize(("fairness_class", "length"), [("voice", 604), ("coding", 801), ("interactive", 1)])
def test_prompts_of_a_class_share_what_their_texts_share(fairness_class: str, length: int) -> None:
    arrivals = [a for a in traces.household(11) if a.fairness_class == fairness_class]
    assert shared_length(arrivals) == length


def test_overlap_shares_nothing_and_shared_a_long_prefix() -> None:
    assert shared_length(traces.overlap(11, 8)) == 1
    assert shared_length(traces.shared(11, 8)) == 801
    assert {a.at for a in traces.shared(11, 8)} == {0.0}
    assert len({a.source for a in traces.overlap(11, 8)}) == 8


def test_each_turn_of_a_conversation_holds_the_one_before_and_its_answer() -> None:
    turns = [a.prompt_token_ids for a in traces.conversation(11, 3)]
    for before, after in pairwise(turns):
        assert after[: len(before) + 64] == before + [output_token(index) for index in range(64)]


def test_adversaries_flood_send_giants_and_leave() -> None:
    arrivals = traces.adversarial(11)
    by_source = Counter(a.source for a in arrivals)
    assert by_source["flooder"] == 200
    assert max(len(a.prompt_token_ids) for a in arrivals if a.source == "giant") > 6000
    assert {len(a.prompt_token_ids) for a in arrivals if a.source == "tiny"} == {2}
    assert any(a.cancel_after_s is not None and not a.cancels_on_token for a in arrivals)
    assert len(by_source) > 30
