"""Runs a workload through the engine that serves the house; only the clock and the model are simulated.

`run` plays the world outside: it hands in what has arrived, takes out what was cancelled, lets the engine step, and
tells the books what came of it. Judging that is `summary.py`'s.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from homeai.backends.simulated.runner import SimulatedRunner
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine, Step
from homeai.engine.runner import RunnerLimits
from homeai.evaluation.books import Books
from homeai.evaluation.cost_model import StepCost, StepShape
from homeai.evaluation.records import Run
from homeai.evaluation.workload import Arrival, Workload
from homeai.request import Request, SamplingParams
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.plan import RequestOutput, StepPlan
from homeai.scheduling.scheduler import Scheduler

MAX_IDLE_STEPS: Final = 1000


def run(
    workload: Workload,
    config: SchedulerConfig,
    cost: StepCost,
    *,
    limits: RunnerLimits | None = None,
    watch: Callable[[Engine, Step], None] = lambda engine, step: None,
) -> Run:
    """`limits` default to what `config` counts on. `watch` sees the engine after each step."""
    return _World(workload, config, cost, limits or limits_of(config), watch).play()


def limits_of(config: SchedulerConfig) -> RunnerLimits:
    """A backend that can hold and do exactly what the scheduler counts on."""
    cache = config.cache
    return RunnerLimits(
        num_kv_cells=cache.num_cells,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        end_token_ids=config.end_token_ids,
        num_seqs=cache.num_seqs,
        is_partitioned=cache.is_partitioned,
        can_share=cache.can_share,
        can_save=cache.can_save,
        kv_bytes_per_token=cache.kv_bytes_per_token,
        max_drafts=config.max_drafts,
    )


class _PlanCost:
    """A `StepCost` as the simulated runner asks for it. `num_arriving`: requests within so many seconds from now."""

    def __init__(self, cost: StepCost, limits: RunnerLimits, num_arriving: Callable[[float], int]) -> None:
        self._cost = cost
        self._limits = limits
        self._num_arriving = num_arriving

    def predict(self, plan: StepPlan, num_cells: int) -> float:
        """`num_cells` in use before the step. With partitions a row passes over its own one only."""
        moved_s = sum(self._cost.kv_op_s(op) for op in plan.kv_ops)
        shape = StepShape.of(plan, num_cells + plan.num_tokens)
        if self._limits.is_partitioned:
            shape = shape._replace(kv_used=shape.num_context_tokens // max(1, len(plan.chunks)))
        step_s = moved_s + self._cost.step_s(shape)
        return step_s + self._cost.arrival_s * self._num_arriving(step_s)


class _World:
    """The clients of one run."""

    def __init__(
        self,
        workload: Workload,
        config: SchedulerConfig,
        cost: StepCost,
        limits: RunnerLimits,
        watch: Callable[[Engine, Step], None],
    ) -> None:
        self._clock = VirtualClock()
        scheduler = Scheduler(config)
        runner = SimulatedRunner(limits, self._clock, _PlanCost(cost, limits, self._num_arriving))
        self._arrival_s = cost.arrival_s
        self._engine = Engine(scheduler, runner, self._clock)
        self._max_model_len = config.max_model_len
        self._watch = watch
        self._books = Books(scheduler)
        self._to_come = deque(workload)
        self._leaving: list[tuple[float, str]] = []  # a heap
        self._arrivals: dict[str, Arrival] = {}

    def play(self) -> Run:
        num_idle = 0
        while self._engine.has_work or self._to_come:
            self._let_in()
            self._let_out()
            step = self._engine.step() if self._engine.has_work else None
            if step is not None:
                self._watch(self._engine, step)
                self._take(step)
            if step is None or not step.plan.chunks:
                self._wait(step)
                num_idle += 1
                assert num_idle < MAX_IDLE_STEPS, "live requests, but nothing runs"
            else:
                num_idle = 0
        return Run(list(self._books.requests.values()), self._books.steps, self._clock.now())

    # ---- the clients -----------------------------------------------------------------------------

    def _num_arriving(self, seconds: float) -> int:
        now = self._clock.now()
        soon = takewhile(lambda arrival: arrival.at < now + seconds, self._to_come)
        return sum(arrival.at >= now for arrival in soon)

    def _let_in(self) -> None:
        while self._to_come and self._to_come[0].at + self._arrival_s <= self._clock.now():
            self._ask(self._to_come.popleft())

    def _ask(self, arrival: Arrival) -> None:
        request = Request(
            f"r{len(self._books.requests)}",
            arrival.prompt_token_ids,
            SamplingParams(max_tokens=arrival.max_tokens, ignore_eos=True),
            source=arrival.source,
            fairness_class=arrival.fairness_class,
            arrival_at=arrival.at,
        )
        is_refused = request.num_prompt_tokens > self._max_model_len
        self._books.arrive(request, is_refused=is_refused)
        if is_refused:
            return
        self._arrivals[request.request_id] = arrival
        self._engine.add(request)
        if arrival.cancel_after_s is not None and not arrival.cancels_on_token:
            heapq.heappush(self._leaving, (arrival.at + arrival.cancel_after_s, request.request_id))

    def _let_out(self) -> None:
        while self._leaving and self._leaving[0][0] <= self._clock.now():
            self._abort(heapq.heappop(self._leaving)[1])

    def _abort(self, request_id: str) -> None:
        output = self._engine.abort(request_id)
        if output is not None:
            self._books.finish(output, self._clock.now())

    def _wait(self, step: Step | None) -> None:
        """Nothing to compute: on to the next thing that happens."""
        happens_at = [self._to_come[0].at + self._arrival_s] if self._to_come else []
        if self._engine.has_work:
            happens_at += [at for at, _ in self._leaving[:1]]
            if step is not None and step.plan.wake_at is not None:
                happens_at.append(step.plan.wake_at)
        if happens_at:
            self._clock.advance(max(0.0, min(happens_at) - self._clock.now()))

    # ---- what came of it -------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        now = self._clock.now()
        self._books.take_step(step, now)
        for output in step.outputs:
            if output.token is not None:
                self._books.take_token(output, now)
            if output.finish_reason is not None:
                self._books.finish(output, now)
            elif self._leaves_with(output, now):
                self._abort(output.request_id)

    def _leaves_with(self, output: RequestOutput, now: float) -> bool:
        arrival = self._arrivals[output.request_id]
        patience_s = arrival.cancel_after_s
        return patience_s is not None and arrival.cancels_on_token and now - arrival.at > patience_s
