"""What holds for any workload in any mode: the real engine and scheduler, a simulated model."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.backends.simulated.runner import SimulatedRunner
from homeai.engine.engine import Engine, Step
from homeai.evaluation import traces
from homeai.evaluation.plan.estimate import estimate
from homeai.evaluation.records import Owner, Run, StepRecord
from homeai.evaluation.simulator import run
from homeai.evaluation.workload import Arrival
from homeai.policy import ClassPolicy
from homeai.request import FinishReason
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.fairness import FairShare
from tests.evaluation.factories import COST, NO_TARGETS, TARGETS, WEIGHTS, create_arrivals, create_config

MODES = ["auto", "continuous", "single", "static", "window"]
CELLS = 128

CONFIGS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "window_s": st.sampled_from([0.0, 0.1, 1.0]),
        "chunked_prefill": st.booleans(),
        "adaptive_budget": st.booleans(),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 40),
        "max_chunk_tokens": st.integers(1, 40),
        "num_cells": st.sampled_from([CELLS, 4 * CELLS]),
        "num_seqs": st.integers(5, 12),
        "max_model_len": st.integers(60, CELLS),
        "can_share": st.booleans(),
        "classes": st.sampled_from([NO_TARGETS, TARGETS]),
    }
)
property_test = settings(max_examples=150, deadline=None, derandomize=True)


def check_books(engine: Engine, step: Step) -> None:
    """What scheduler and runner hold is the same, and no more than there is."""
    scheduler, runner = engine.scheduler, engine.runner
    assert isinstance(runner, SimulatedRunner)
    config = scheduler.config
    assert len(step.plan.chunks) <= len(scheduler.running) + len(step.outputs) <= 2 * config.max_num_seqs + 1
    assert scheduler.cache.num_used <= config.cache.num_cells
    if not scheduler.cache.pending_ops:
        assert runner.num_cells_used == scheduler.cache.num_used
    if config.chunked_prefill:
        assert step.plan.num_tokens <= config.max_num_batched_tokens
    for chunk, count in zip(step.plan.chunks, step.result.num_computed, strict=True):
        assert 0 <= count <= chunk.num_tokens


@given(seed=st.integers(0, 100_000), config=CONFIGS)
@property_test
def test_every_request_ends_once_with_what_it_asked_for_in_every_mode(seed: int, config: dict[str, Any]) -> None:
    arrivals = traces.scatter(seed)
    outcome = run(arrivals, create_config(**config), COST, watch=check_books)
    assert len(outcome.requests) == len(arrivals)
    for arrival, record in zip(arrivals, outcome.requests, strict=True):
        assert record.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)
        assert record.finished_at is not None
        assert record.token_times == sorted(record.token_times)
        room = max(1, config["max_model_len"] - len(arrival.prompt_token_ids))
        wanted = min(arrival.max_tokens, room)
        assert len(record.token_times) <= wanted
        if record.finish_reason is FinishReason.LENGTH:
            assert len(record.token_times) == wanted
        if arrival.cancel_after_s is None:
            assert record.finish_reason is FinishReason.LENGTH


@given(seed=st.integers(0, 100_000), config=CONFIGS)
@property_test
def test_counters_are_the_sum_of_the_plans(seed: int, config: dict[str, Any]) -> None:
    """Everybody is charged for what was computed or drawn for it, once, and for nothing else."""
    charged: dict[Owner, float] = defaultdict(float)
    charge = FairShare.charge

    def recording(share: FairShare, fairness_class: str, source: str, cost: float) -> None:
        charged[fairness_class, source] += cost
        charge(share, fairness_class, source, cost)

    arrivals = [a for a in traces.scatter(seed) if a.cancel_after_s is None]
    with patch.object(FairShare, "charge", recording):
        outcome = run(arrivals, create_config(**config), COST)
    served: dict[Owner, float] = defaultdict(float)
    for step in outcome.steps:
        for owner, cost in step.service.items():
            served[owner] += cost
    assert {owner: cost for owner, cost in served.items() if cost} == dict(charged)


@pytest.mark.parametrize("mode", ["static", "window"])
def test_batch_of_a_baseline_runs_to_its_end_before_anybody_joins(mode: str) -> None:
    batch: set[str] = set()

    def watch(engine: Engine, step: Step) -> None:
        nonlocal batch
        in_step = {chunk.request_id for chunk in step.plan.chunks}
        if not batch:
            batch = set(in_step)
        assert in_step <= batch
        batch = {request.request_id for request in engine.scheduler.running}

    outcome = run(traces.bursts(5, 40.0), create_config(mode=mode, num_cells=16384), COST, watch=watch)
    assert all(record.finish_reason is FinishReason.LENGTH for record in outcome.requests)


def test_window_collects_for_its_time_unless_the_batch_is_full() -> None:
    few = create_arrivals(1) + create_arrivals(1, at=0.3, source="b")
    config = create_config(mode="window", window_s=0.5, max_num_seqs=3)
    assert [r.admitted_at for r in run(few, config, COST).requests] == [0.5, 0.5]
    many = create_arrivals(1) + create_arrivals(2, at=0.3, source="b")
    assert [r.admitted_at for r in run(many, config, COST).requests] == [0.3, 0.3, 0.3]


def test_single_serves_one_at_a_time_and_the_heaviest_class_first() -> None:
    arrivals = [a for name in reversed(WEIGHTS) for a in create_arrivals(2, fairness_class=name)]
    outcome = run(arrivals, create_config(mode="single"), COST)
    assert {step.num_rows for step in outcome.steps} == {1}
    order = sorted(outcome.requests, key=lambda r: r.token_times[0])
    assert [r.fairness_class for r in order] == [name for name in WEIGHTS for _ in range(2)]


# ---- fairness ------------------------------------------------------------------------------------------


def backlog(
    rng: random.Random, source: str, fairness_class: str, *, prompt: int, output: int, service: float
) -> list[Arrival]:
    """Requests worth `service` weighted tokens, with lengths up to those given, none sharing a beginning.

    Each source has its own habits.
    """
    longest_prompt, longest_output = rng.randint(1, prompt), rng.randint(1, output)
    arrivals = list[Arrival]()
    while service > 0:
        prompt_token_ids = [rng.randrange(10**9) for _ in range(rng.randint(1, longest_prompt))]
        max_tokens = rng.randint(1, longest_output)
        service -= len(prompt_token_ids) + 2 * max_tokens
        arrivals.append(
            Arrival(
                at=0.0,
                source=source,
                fairness_class=fairness_class,
                prompt_token_ids=prompt_token_ids,
                max_tokens=max_tokens,
            )
        )
    return arrivals


def while_all_wait(steps: list[StepRecord], owners: set[Owner]) -> list[StepRecord]:
    """The steps up to the first in which one of `owners` has nobody waiting."""
    end = next((i for i, step in enumerate(steps) if not owners <= step.backlogged), len(steps))
    return steps[:end]


def service_of(steps: list[StepRecord], key: Callable[[Owner], str]) -> dict[str, float]:
    served: dict[str, float] = defaultdict(float)
    for step in steps:
        for owner, cost in step.service.items():
            served[key(owner)] += cost
    return served


@given(
    seed=st.integers(0, 10_000),
    num_sources=st.integers(2, 4),
    max_num_seqs=st.integers(2, 6),
    chunk=st.integers(6, 64),
    num_cells=st.sampled_from([256, 2048]),
    chunked_prefill=st.booleans(),
    adaptive_budget=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_backlogged_sources_of_one_class_stay_within_the_bound(
    seed: int,
    num_sources: int,
    max_num_seqs: int,
    chunk: int,
    num_cells: int,
    chunked_prefill: bool,
    adaptive_budget: bool,
) -> None:
    """|W_a − W_b| ≤ 2·max(w_p·L_input, w_q·M) over any time in which both wait (Sheng et al., theorem 4.4).

    M is what the batch holds at most, in tokens.
    """
    prompt, output = 120, 30
    rng = random.Random(seed)
    config = create_config(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        max_chunk_tokens=chunk,
        num_cells=num_cells,
        chunked_prefill=chunked_prefill,
        adaptive_budget=adaptive_budget,
        classes=TARGETS,
    )
    sources = "abcd"[:num_sources]
    arrivals = [a for s in sources for a in backlog(rng, s, "interactive", prompt=prompt, output=output, service=4000)]
    outcome = run(arrivals, config, COST)
    steps = while_all_wait(outcome.steps, {("interactive", source) for source in sources})
    bound = 2 * max(1.0 * prompt, 2.0 * min(num_cells, max_num_seqs * (prompt + output)))
    for a in sources:
        for b in sources:
            assert largest_swing(steps, ("interactive", a), ("interactive", b)) <= bound


def largest_swing(steps: list[StepRecord], a: Owner, b: Owner) -> float:
    """The most by which `a` got ahead of `b` over any run of `steps`."""
    lead, lowest, largest = 0.0, 0.0, 0.0
    for step in steps:
        lead += step.service.get(a, 0.0) - step.service.get(b, 0.0)
        largest = max(largest, lead - lowest)
        lowest = min(lowest, lead)
    return largest


@pytest.mark.parametrize("classes", [NO_TARGETS, TARGETS], ids=["without targets", "with targets"])
@pytest.mark.parametrize("num_cells", [4096, 16384])
@pytest.mark.parametrize("seed", range(3))
def test_long_run_service_of_backlogged_classes_follows_the_weights(
    seed: int, num_cells: int, classes: dict[str, ClassPolicy]
) -> None:
    rng = random.Random(seed)
    owners = {(name, source) for name in WEIGHTS for source in "ab"}
    arrivals = [
        a
        for name, source in sorted(owners)
        for a in backlog(rng, source, name, prompt=1000, output=30, service=50_000 * WEIGHTS[name])
    ]
    config = create_config(num_cells=num_cells, max_num_batched_tokens=2048, max_chunk_tokens=1024, classes=classes)
    steps = while_all_wait(run(arrivals, config, estimate("rtx-4090", "8b-q4")).steps, owners)
    served = service_of(steps, lambda owner: owner[0])
    total, all_weights = sum(served.values()), sum(WEIGHTS.values())
    assert total > 1_000_000, "long enough for a class's bounded hurry not to count"
    for name, weight in WEIGHTS.items():
        assert served[name] / total == pytest.approx(weight / all_weights, rel=0.05)


@pytest.mark.parametrize("classes", [NO_TARGETS, TARGETS], ids=["without targets", "with targets"])
@pytest.mark.parametrize("chunked_prefill", [True, False])
def test_nobody_starves_beside_a_flood_of_the_heaviest_class(
    chunked_prefill: bool, classes: dict[str, ClassPolicy]
) -> None:
    """Background has a fifteenth of the weight, or more where others do not wait: its wait is bounded, flood or not."""
    flood = [a for source in "ab" for a in create_arrivals(400, source=source, fairness_class="voice", max_tokens=24)]
    quiet = create_arrivals(20, source="nas", fairness_class="background", num_prompt_tokens=60)
    outcome = run(flood + quiet, create_config(chunked_prefill=chunked_prefill, classes=classes), COST)
    owner = ("background", "nas")
    since = 0.0
    for step in outcome.steps:
        if owner in step.service or owner not in step.backlogged:
            since = step.started_at + step.step_s
        assert step.started_at + step.step_s - since < 10.0
    last = max(r.finished_at or 0.0 for r in outcome.requests if r.fairness_class == "background")
    assert last < outcome.wall_s / 2


@pytest.mark.parametrize("mode", MODES)
def test_adversaries_keep_nobody_from_an_answer(mode: str) -> None:
    config = create_config(mode=mode, num_cells=16384, classes=TARGETS)
    outcome = run(traces.adversarial(7, 20.0), config, COST, watch=check_books)
    for record in outcome.requests:
        assert record.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)


def test_ten_thousand_may_wait() -> None:
    arrivals = [
        a for n in range(100) for a in create_arrivals(100, source=f"s{n}", fairness_class=list(WEIGHTS)[n % 4])
    ]
    outcome = run(arrivals, create_config(), COST)
    assert max(step.num_waiting for step in outcome.steps) > 9_900
    assert {r.finish_reason for r in outcome.requests} == {FinishReason.LENGTH}
    assert sum(len(r.token_times) for r in outcome.requests) == 50_000


@pytest.mark.parametrize("seed", [11, 12])
def test_targets_help_voice_and_cost_no_throughput(seed: int) -> None:
    """On the household trace, against the same scheduler without them."""

    def played(config: SchedulerConfig) -> Run:
        return run(traces.household(seed), config, COST)

    def voice_ttft(outcome: Run) -> list[float]:
        voice = [r for r in outcome.requests if r.fairness_class == "voice"]
        return sorted(r.token_times[0] - r.arrival_at for r in voice)

    without = played(create_config(num_cells=16384))
    with_targets = played(create_config(num_cells=16384, classes=TARGETS))
    assert voice_ttft(with_targets)[-2] < voice_ttft(without)[-2]
    assert with_targets.wall_s < 1.05 * without.wall_s
