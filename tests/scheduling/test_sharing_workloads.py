"""Properties of whole workloads whose prompts begin alike: everything the scheduler can do is switched on.

The simulated runner holds every token and asserts that what a request goes on from is what it begins with.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.backends.simulated.runner import SimulatedRunner, output_token
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine, Step
from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import FinishReason, Request, SamplingParams
from tests.engine.factories import limits_of
from tests.scheduling.factories import create_scheduler

HEADS = {name: [rng.randrange(50) for _ in range(400)] for name in "xyz" for rng in [random.Random(name)]}
CLASSES = {
    "voice": ClassPolicy(weight=8.0, ttft_target_s=0.3, itl_target_s=0.2, share_cap=0.6),
    "interactive": ClassPolicy(weight=4.0, ttft_target_s=2.0, itl_target_s=0.2, max_running=3),
    "background": ClassPolicy(weight=1.0, kv_cap=0.5, queue_timeout_s=600.0),
}
SOURCES = {"a": SourcePolicy(max_running=2), "b": SourcePolicy(private=True), "c": SourcePolicy(kv_cap=0.4)}


@dataclass(frozen=True)
class Arrival:
    """A prompt of `num_shared` tokens of a head, then `num_more` of its own; or the next turn of an earlier request."""

    after_s: float
    source: str
    fairness_class: str
    head: str
    num_shared: int
    num_more: int
    max_tokens: int
    follows: bool
    cache_prompt: bool
    is_pin: bool
    abort_after_steps: int | None


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        after_s=st.sampled_from([0.0, 0.0, 0.02, 0.5, 3.0]),
        source=st.sampled_from("abcd"),
        fairness_class=st.sampled_from(sorted(CLASSES)),
        head=st.sampled_from(sorted(HEADS)),
        num_shared=st.integers(0, 130),
        num_more=st.integers(1, 40),
        max_tokens=st.integers(0, 30),
        follows=st.booleans(),
        cache_prompt=st.integers(0, 7).map(bool),
        is_pin=st.integers(0, 9).map(lambda n: n == 0),
        abort_after_steps=st.none() | st.integers(0, 20),
    ),
    min_size=1,
    max_size=20,
)
CONFIGS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["auto", "auto", "continuous", "single", "static", "window"]),
        "window_s": st.sampled_from([0.0, 0.2]),
        "adaptive_budget": st.booleans(),
        "chunked_prefill": st.integers(0, 3).map(bool),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 64),
        "max_chunk_tokens": st.integers(1, 64),
        "max_kept_cells": st.sampled_from([0, 60, None]),
        "host_bytes": st.sampled_from([0, 300, 10_000]),
        "can_share": st.integers(0, 4).map(bool),
        "can_save": st.booleans(),
        "classes": st.just(CLASSES),
        "sources": st.just(SOURCES),
    }
)
LAYOUTS = st.sampled_from(["unified", "roomy", "partitioned"])


def build(config: dict[str, object], layout: str) -> Engine:
    max_num_seqs = int(str(config["max_num_seqs"]))
    num_cells = {"unified": 260, "roomy": 2000, "partitioned": 250 * max_num_seqs}[layout]
    scheduler = create_scheduler(
        **config,
        num_kv_cells=num_cells,
        max_model_len=250,
        num_seqs=max_num_seqs + (0 if layout == "partitioned" else 4),
        is_partitioned=layout == "partitioned",
        kv_bytes_per_token=1,
    )
    clock = VirtualClock()
    return Engine(scheduler, SimulatedRunner(limits_of(scheduler.config), clock), clock)


def prompt_of(arrival: Arrival, number: int, earlier: list[Request]) -> list[int]:
    own = [1000 + number] * arrival.num_more
    if arrival.follows and earlier:
        last = earlier[-1]
        said = [output_token(i) for i in range(min(last.sampling.max_tokens, 10))]
        return (last.prompt_token_ids + said)[:180] + own
    return HEADS[arrival.head][: arrival.num_shared] + own


class House:
    """Feeds arrivals in as the clock passes and checks every step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clock = engine.clock
        self.requests: list[Request] = []
        self.ended: Counter[str] = Counter()
        self.drawn: dict[str, list[int]] = {}

    def run(self, arrivals: list[Arrival]) -> None:
        assert isinstance(self.clock, VirtualClock)
        at, aborts, todo = 0.0, {}, []
        for number, arrival in enumerate(arrivals):
            at += arrival.after_s
            prompt = prompt_of(arrival, number, todo)
            request = Request(
                f"r{number}",
                prompt,
                SamplingParams(max_tokens=arrival.max_tokens),
                source=arrival.source,
                fairness_class=arrival.fairness_class,
                arrival_at=at,
                cache_prompt=arrival.cache_prompt,
                is_pin=arrival.is_pin,
            )
            todo.append(request)
            if arrival.abort_after_steps is not None:
                aborts[request.request_id] = arrival.abort_after_steps
        num_steps = 0
        while todo or self.engine.has_work:
            if not self.engine.has_work:
                self.clock.advance(max(0.0, todo[0].arrival_at - self.clock.now()))
            while todo and todo[0].arrival_at <= self.clock.now():
                self.requests.append(todo.pop(0))
                self.drawn[self.requests[-1].request_id] = []
                self.engine.add(self.requests[-1])
            step = self.engine.step()
            self._take(step)
            wake_at = step.plan.wake_at
            if wake_at is not None:
                self.clock.advance(max(0.0, min([wake_at, *(r.arrival_at for r in todo[:1])]) - self.clock.now()))
            for request_id in [r for r in aborts if r in self.drawn]:
                aborts[request_id] -= 1
                if aborts[request_id] < 0:
                    del aborts[request_id]
                    output = self.engine.abort(request_id)
                    self.ended[request_id] += output is not None
            num_steps += 1
            assert num_steps < 20_000, "no progress"

    def _take(self, step: Step) -> None:
        scheduler, runner = self.engine.scheduler, self.engine.runner
        assert isinstance(runner, SimulatedRunner)
        assert not step.result.out_of_room, "the count said that there was room"
        for output in step.outputs:
            if output.token is not None:
                self.drawn[output.request_id].append(output.output_index)
            self.ended[output.request_id] += output.finish_reason is not None
        config = scheduler.config
        assert len(scheduler.running) <= config.max_num_seqs
        if config.chunked_prefill:
            assert step.plan.num_tokens <= config.max_num_batched_tokens
        if not scheduler.cache.pending_ops:
            assert runner.num_cells_used == scheduler.cache.num_used
        assert sum(r.fairness_class == "interactive" for r in scheduler.running) <= 3
        assert sum(r.source == "a" for r in scheduler.running) <= 2

    def check_end(self) -> None:
        scheduler, runner = self.engine.scheduler, self.engine.runner
        assert isinstance(runner, SimulatedRunner)
        for request in self.requests:
            assert self.ended[request.request_id] == 1
            assert self.drawn[request.request_id] == list(range(request.num_output_tokens))
            assert request.num_cached_tokens < request.num_prompt_tokens
            if request.finish_reason is FinishReason.LENGTH:
                room = max(1, scheduler.config.max_model_len - request.num_prompt_tokens)
                assert request.num_output_tokens == min(request.sampling.max_tokens, room)
        assert not scheduler.running
        assert not scheduler.waiting
        assert scheduler.cache.tree.num_cells == scheduler.cache.num_kept + scheduler.cache.tree.num_held_cells
        assert runner.num_saved == len(scheduler.cache.host)


@given(config=CONFIGS, layout=LAYOUTS, arrivals=ARRIVALS)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_everybody_gets_all_of_it_once_whatever_is_shared_parked_saved_or_cut(
    config: dict[str, object], layout: str, arrivals: list[Arrival]
) -> None:
    house = House(build(config, layout))
    house.run(arrivals)
    house.check_end()
