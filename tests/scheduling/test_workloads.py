"""Properties of whole workloads: the real engine and scheduler, a simulated runner, a virtual clock."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.backends.simulated.runner import SimulatedRunner
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine, Step
from homeai.engine.runner import RunnerLimits
from homeai.request import FinishReason, Request, SampledToken, SamplingParams
from homeai.scheduling.plan import StepPlan, StepResult
from homeai.scheduling.scheduler import Scheduler
from tests.engine.factories import limits_of
from tests.scheduling.factories import END_TOKEN, WEIGHTS, create_requests, create_scheduler, different_prompts

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class RandomRunner(SimulatedRunner):
    """Sometimes draws an end token."""

    def __init__(self, limits: RunnerLimits, clock: VirtualClock, end_rate: float) -> None:
        super().__init__(limits, clock)
        self._end_rate = end_rate
        self._random = random.Random(3)

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        sampled = [self._ended(tokens) for tokens in result.sampled]
        return replace(result, sampled=sampled)

    def _ended(self, tokens: Sequence[SampledToken]) -> Sequence[SampledToken]:
        return (SampledToken(END_TOKEN),) if tokens and self._random.random() < self._end_rate else tokens


@dataclass(frozen=True)
class Arrival:
    after_s: float
    source: str
    fairness_class: str
    num_prompt_tokens: int
    max_tokens: int
    abort_after_steps: int | None = None


@dataclass
class House:
    """An engine with what a test wants to know of it: who ended how, what was drawn, who was charged what."""

    engine: Engine
    clock: VirtualClock
    runner: SimulatedRunner
    ended: dict[str, FinishReason] = field(default_factory=dict)
    drawn: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    charged: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    requests: dict[str, Request] = field(default_factory=dict)
    _seen_tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    planned: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def build(cls, *, end_rate: float = 0.0, num_missing_cells: int = 0, **config: object) -> House:
        scheduler = create_scheduler(**config)
        limits = limits_of(scheduler.config, num_missing_cells=num_missing_cells)
        clock = VirtualClock()
        runner = RandomRunner(limits, clock, end_rate)
        house = cls(Engine(scheduler, runner, clock), clock, runner)
        house._record_charges()
        return house

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    def _record_charges(self) -> None:
        charge = self.scheduler.share.charge

        def recording(fairness_class: str, source: str, cost: float) -> None:
            self.charged[fairness_class, source] += cost
            charge(fairness_class, source, cost)

        self.scheduler.share.charge = recording  # type: ignore[method-assign]

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.engine.add(request)

    def abort(self, request_id: str) -> None:
        output = self.engine.abort(request_id)
        if output is not None:
            assert output.finish_reason is not None
            self._end(output.request_id, output.finish_reason)

    def step(self) -> Step:
        step = self.engine.step()
        for chunk in step.plan.chunks:
            self._count(self.requests[chunk.request_id], chunk.start + chunk.num_tokens + chunk.num_outputs)
        for output in step.outputs:
            if output.token is not None:
                self.drawn[output.request_id].append(output.output_index)
            if output.finish_reason is not None:
                self._end(output.request_id, output.finish_reason)
        self._check(step)
        return step

    def _count(self, request: Request, num_tokens: int) -> None:
        """Our own account of the plans: every token once, prompt and output by their weights."""
        for position in range(self._seen_tokens[request.request_id], num_tokens):
            weight = PROMPT_WEIGHT if position < request.num_prompt_tokens else OUTPUT_WEIGHT
            self.planned[request.fairness_class, request.source] += weight
        self._seen_tokens[request.request_id] = max(num_tokens, self._seen_tokens[request.request_id])

    def _end(self, request_id: str, reason: FinishReason) -> None:
        assert request_id not in self.ended, f"{request_id} ended twice"
        self.ended[request_id] = reason

    def _check(self, step: Step) -> None:
        """What holds after every step."""
        scheduler, config = self.scheduler, self.scheduler.config
        assert len(step.plan.chunks) <= config.max_num_seqs
        assert len(scheduler.running) <= config.max_num_seqs
        if config.chunked_prefill:
            assert step.plan.num_tokens <= config.max_num_batched_tokens
        for chunk in step.plan.chunks:
            request = self.requests[chunk.request_id]
            if request in scheduler.running:
                assert self.runner.length(chunk.seq_id) == request.num_computed_tokens
        num_dropped = sum(self.runner.length(op.seq_id) for op in scheduler.cache.pending_ops)
        assert self.runner.num_cells_used - num_dropped <= scheduler.cache.num_used <= self.runner.num_cells_used
        assert step.plan.chunks or step.plan.kv_ops or step.outputs or not scheduler.has_work, "a step for nothing"

    def finish(self, *, limit: int = 100_000) -> int:
        num_steps = 0
        while self.engine.has_work:
            self.step()
            num_steps += 1
            assert num_steps < limit, "no progress"
        return num_steps

    def check_end(self) -> None:
        """What holds when all is over."""
        assert self.ended.keys() == self.requests.keys()
        for request_id, request in self.requests.items():
            assert self.drawn[request_id] == list(range(request.num_output_tokens))
            assert request.finish_reason is self.ended[request_id]
        assert self.scheduler.cache.num_used == self.runner.num_cells_used == 0
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        assert not list(self.scheduler.share.classes.backlogged())
        assert dict(self.charged) == {owner: cost for owner, cost in self.planned.items() if cost}


def run_arrivals(house: House, arrivals: list[Arrival]) -> None:
    """Feed the arrivals in as the clock passes, abort whom they say, and run to the end."""
    at, todo, aborts = 0.0, [], {}
    for number, arrival in enumerate(arrivals):
        at += arrival.after_s
        request = Request(
            f"r{number}",
            different_prompts(arrival.num_prompt_tokens),
            SamplingParams(max_tokens=arrival.max_tokens),
            source=arrival.source,
            fairness_class=arrival.fairness_class,
            arrival_at=at,
        )
        todo.append(request)
        if arrival.abort_after_steps is not None:
            aborts[request.request_id] = arrival.abort_after_steps
    while todo or house.engine.has_work:
        if not house.engine.has_work:
            house.clock.advance(max(0.0, todo[0].arrival_at - house.clock.now()))
        while todo and todo[0].arrival_at <= house.clock.now():
            house.add(todo.pop(0))
        house.step()
        for request_id in [r for r in aborts if r in house.requests]:
            aborts[request_id] -= 1
            if aborts[request_id] < 0:
                del aborts[request_id]
                house.abort(request_id)


def workloads(max_prompt: int) -> st.SearchStrategy[list[Arrival]]:
    return st.lists(
        st.builds(
            Arrival,
            after_s=st.sampled_from([0.0, 0.0, 0.01, 0.5]),
            source=st.sampled_from("abc"),
            fairness_class=st.sampled_from(sorted(WEIGHTS)),
            num_prompt_tokens=st.integers(1, max_prompt),
            max_tokens=st.integers(0, 30),
            abort_after_steps=st.none() | st.integers(0, 20),
        ),
        min_size=1,
        max_size=25,
    )


CELLS = 96
CONFIGS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["auto", "continuous", "single"]),
        "chunked_prefill": st.booleans(),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 40),
        "max_chunk_tokens": st.integers(1, 40),
        "num_kv_cells": st.just(CELLS) | st.just(4 * CELLS),
        "max_model_len": st.integers(60, CELLS),
        "queue_timeouts_s": st.sampled_from([{}, {"background": 0.2, "voice": 1.0}]),
    }
)
property_test = settings(max_examples=150, deadline=None, derandomize=True)


@given(config=CONFIGS, arrivals=workloads(60), end_rate=st.sampled_from([0.0, 0.1]))
@property_test
def test_every_request_ends_once_and_nothing_is_lost(
    config: dict[str, object], arrivals: list[Arrival], end_rate: float
) -> None:
    house = House.build(end_rate=end_rate, **config)
    run_arrivals(house, arrivals)
    house.check_end()


@given(config=CONFIGS, arrivals=workloads(60), num_missing_cells=st.integers(1, CELLS - 5))
@property_test
def test_cache_with_fewer_cells_than_counted_fails_nobody(
    config: dict[str, object], arrivals: list[Arrival], num_missing_cells: int
) -> None:
    house = House.build(num_missing_cells=num_missing_cells, **config)
    run_arrivals(house, arrivals)
    house.check_end()
    assert set(house.ended.values()) <= {FinishReason.LENGTH, FinishReason.ABORT, FinishReason.TIMEOUT}


@given(config=CONFIGS, arrivals=workloads(60))
@property_test
def test_without_aborts_everyone_gets_what_was_asked(config: dict[str, object], arrivals: list[Arrival]) -> None:
    house = House.build(**config | {"queue_timeouts_s": {}})
    run_arrivals(house, [replace(a, abort_after_steps=None) for a in arrivals])
    house.check_end()
    max_model_len = house.scheduler.config.max_model_len
    for request in house.requests.values():
        room = max(1, max_model_len - request.num_prompt_tokens)
        assert request.num_output_tokens == min(request.sampling.max_tokens, room)


def test_thousands_of_requests_run_in_simulated_time() -> None:
    house = House.build(max_num_seqs=8)
    rng = random.Random(11)
    arrivals = [
        Arrival(
            rng.expovariate(4.0),
            f"s{rng.randrange(20)}",
            rng.choice(sorted(WEIGHTS)),
            rng.randint(1, 300),
            rng.randint(1, 40),
        )
        for _ in range(3000)
    ]
    run_arrivals(house, arrivals)
    house.check_end()
    assert house.clock.now() > 600
    assert set(house.ended.values()) == {FinishReason.LENGTH}


# ---- fairness ---------------------------------------------------------------------------------------


def backlog(rng: random.Random, n: int, source: str, fairness_class: str, *, prompt: int, output: int) -> list[Request]:
    """Requests with lengths up to those given, each source with its own habits."""
    (longest_prompt, longest_output) = rng.randint(1, prompt), rng.randint(1, output)
    return [
        create_requests(
            1,
            source=source,
            fairness_class=fairness_class,
            num_prompt_tokens=rng.randint(1, longest_prompt),
            max_tokens=rng.randint(1, longest_output),
        )[0]
        for _ in range(n)
    ]


def add_renamed(house: House, requests: list[Request]) -> None:
    for number, request in enumerate(requests):
        request.request_id = f"{request.fairness_class}-{request.source}-{number}"
        house.add(request)


@given(
    seed=st.integers(0, 10_000),
    num_sources=st.integers(2, 4),
    max_num_seqs=st.integers(1, 6),
    chunk=st.integers(6, 64),
    num_kv_cells=st.sampled_from([160, 400, 2000]),
    chunked_prefill=st.booleans(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_backlogged_sources_of_one_class_stay_within_the_bound(
    seed: int, num_sources: int, max_num_seqs: int, chunk: int, num_kv_cells: int, chunked_prefill: bool
) -> None:
    """|W_a - W_b| ≤ 2·max(w_p·L_input, w_q·M) over any time in which both wait (theorem 4.4 of the VTC paper).

    M is what a batch can still draw once it is admitted.
    """
    prompt, output = 120, 30
    rng = random.Random(seed)
    house = House.build(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        max_chunk_tokens=chunk,
        num_kv_cells=num_kv_cells,
        chunked_prefill=chunked_prefill,
    )
    sources = "abcd"[:num_sources]
    for source in sources:
        add_renamed(house, backlog(rng, 60, source, "coding", prompt=prompt, output=output))
    bound = 2 * max(PROMPT_WEIGHT * prompt, OUTPUT_WEIGHT * max_num_seqs * output)
    lead: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0])
    counters = house.scheduler.share.of_class("coding")
    while len(set(counters.backlogged())) == num_sources:
        house.step()
        for a in sources:
            for b in sources:
                lead[a, b].append(house.charged["coding", a] - house.charged["coding", b])
    for pair, values in lead.items():
        assert max(values) - min(values) <= bound, pair


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_kv_cells", [512, 4096])
def test_long_run_service_of_backlogged_classes_follows_the_weights(seed: int, num_kv_cells: int) -> None:
    rng = random.Random(seed)
    house = House.build(max_num_seqs=4, num_kv_cells=num_kv_cells)
    for fairness_class, weight in WEIGHTS.items():
        for source in "ab":
            n = int(150 * weight)
            add_renamed(house, backlog(rng, n, source, fairness_class, prompt=120, output=30))
    backlogged = house.scheduler.share.classes.backlogged
    while len(set(backlogged())) == len(WEIGHTS):
        house.step()
    served = {c: sum(v for (name, _), v in house.charged.items() if name == c) for c in WEIGHTS}
    total, all_weights = sum(served.values()), sum(WEIGHTS.values())
    for fairness_class, weight in WEIGHTS.items():
        assert served[fairness_class] / total == pytest.approx(weight / all_weights, rel=0.05)


@pytest.mark.parametrize("chunked_prefill", [True, False])
@pytest.mark.parametrize("num_kv_cells", [128, 2000])
def test_every_backlogged_source_is_served_again_and_again(chunked_prefill: bool, num_kv_cells: int) -> None:
    """The lightest class waits while the others get 14 times as much: 100 steps here, never more than 200."""
    rng = random.Random(7)
    house = House.build(
        max_num_seqs=3, max_num_batched_tokens=64, num_kv_cells=num_kv_cells, chunked_prefill=chunked_prefill
    )
    owners = [(fairness_class, source) for fairness_class in WEIGHTS for source in "ab"]
    for fairness_class, source in owners:
        add_renamed(house, backlog(rng, 200, source, fairness_class, prompt=60, output=20))
    last_served, before = dict.fromkeys(owners, 0), dict(house.charged)
    for number in range(2000):
        house.step()
        for owner in owners:
            if house.charged[owner] != before.get(owner) or owner[1] not in set(
                house.scheduler.share.of_class(owner[0]).backlogged()
            ):
                last_served[owner] = number
            assert number - last_served[owner] < 200, f"{owner} starves"
        before = dict(house.charged)
