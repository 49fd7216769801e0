"""Engine = scheduler + runner + clock. The same object serves the house, the tests and the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from homeai.clock import Clock
from homeai.engine.runner import ModelRunner
from homeai.errors import GrammarFailed
from homeai.request import FinishReason, Request
from homeai.scheduling.plan import RequestOutput, StepPlan, StepResult
from homeai.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration as it ran; `host_s` is what it cost beside the model's forward pass."""

    plan: StepPlan
    result: StepResult
    outputs: list[RequestOutput]
    num_preemptions: int
    num_evictions: int
    step_s: float

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that were right: every row draws one token by itself."""
        num_drawn = sum(output.token is not None for output in self.outputs)
        return num_drawn - sum(chunk.num_outputs for chunk in self.plan.chunks) if self.result.num_draft_tokens else 0

    @property
    def host_s(self) -> float:
        return self.step_s - self.result.forward_s


class Engine:
    """One thread calls it. A request handed to `add` ends exactly once, in some step's outputs or in `abort`."""

    on_plan: Callable[[StepPlan], None]

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, clock: Clock) -> None:
        """`on_plan` hears of a step before it runs."""
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.on_plan = lambda plan: None

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
        """Whether to `add` it now. Else `on_prepared` is called when to, from another thread; nobody waits for it."""
        return self.runner.prepare(request, on_prepared)

    def add(self, request: Request) -> None:
        """Raises `AssertionError` or `GrammarFailed` for a request that can not be served; nothing is changed then."""
        self.scheduler.add(request)
        try:
            self.runner.add(request)
        except (AssertionError, GrammarFailed):
            self.scheduler.abort(request.request_id, self.clock.now())
            raise

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> RequestOutput | None:
        output = self.scheduler.abort(request_id, self.clock.now(), reason)
        if output is not None:
            self.runner.remove(request_id)
        return output

    def step(self) -> Step:
        """Re-form the batch and run it once."""
        started_at = self.clock.now()
        counts_before = self.scheduler.num_preemptions, self.scheduler.cache.num_evictions
        expired = self.scheduler.expire(started_at)
        plan = self.scheduler.schedule(started_at)
        self.on_plan(plan)
        result = self.runner.execute(plan)
        outputs = expired + self.scheduler.update(plan, result, self.clock.now())
        for output in outputs:
            if output.finish_reason is not None:
                self.runner.remove(output.request_id)
        num_preemptions = self.scheduler.num_preemptions - counts_before[0]
        num_evictions = self.scheduler.cache.num_evictions - counts_before[1]
        step_s = self.clock.now() - started_at
        self.scheduler.learn(plan, result, step_s)
        return Step(plan, result, outputs, num_preemptions, num_evictions, step_s)
