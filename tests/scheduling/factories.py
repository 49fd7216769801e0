"""The two factories of the scheduler tests, a step without a model, and machines of several speeds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from homeai.policy import ClassPolicy
from homeai.request import Request, RequestStatus, SampledToken, SamplingParams
from homeai.scheduling.cache import CacheConfig
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.plan import Chunk, RequestOutput, StepPlan, StepResult
from homeai.scheduling.scheduler import Scheduler
from homeai.scheduling.step_time import StepTimeModel

TOKEN = 7
END_TOKEN = 1
WEIGHTS = {"voice": 8.0, "interactive": 4.0, "coding": 2.0, "background": 1.0}


CACHE_KEYS = {"num_cells", "num_seqs", "is_partitioned", "can_share", "can_save", "kv_bytes_per_token"}
CACHE_KEYS |= {"max_kept_cells", "host_bytes"}


def create_scheduler(**config: object) -> Scheduler:
    """Keys of `SchedulerConfig` and of its `CacheConfig`, and `num_kv_cells`, `class_weights`, `queue_timeouts_s`.

    Left out: nothing is kept for reuse, a step is bounded by its tokens and not by time, no class has targets.
    """
    num_cells = int(str(config.pop("num_kv_cells", 4096)))
    weights: Mapping[str, float] = config.pop("class_weights", WEIGHTS)  # type: ignore[assignment]
    timeouts: Mapping[str, float] = config.pop("queue_timeouts_s", {})  # type: ignore[assignment]
    cache = {"num_cells": num_cells, "num_seqs": 32, "max_kept_cells": 0}
    cache |= {key: config.pop(key) for key in CACHE_KEYS & config.keys()}  # type: ignore[dict-item]
    defaults: dict[str, object] = {
        "cache": CacheConfig(**cache),  # type: ignore[arg-type]
        "max_model_len": min(4096, num_cells),
        "end_token_ids": frozenset({END_TOKEN}),
        "adaptive_budget": False,
        "classes": {
            name: ClassPolicy(weight=weight, queue_timeout_s=timeouts.get(name, math.inf))
            for name, weight in weights.items()
        },
    }
    return Scheduler(SchedulerConfig(**defaults | config))  # type: ignore[arg-type]


def different_prompts(num_tokens: int) -> list[int]:
    """No two begin alike."""
    return [next(_numbers), *[5] * (num_tokens - 1)][:num_tokens]


_numbers = itertools.count(1000)


def create_requests(
    n: int,
    *,
    num_prompt_tokens: int = 10,
    max_tokens: int = 16,
    source: str = "default",
    fairness_class: str = "interactive",
    arrival_at: float = 0.0,
    **sampling: int | bool,
) -> list[Request]:
    """Requests of one source, named source-0, source-1…, arriving a microsecond after one another."""
    return [
        Request(
            f"{source}-{i}",
            different_prompts(num_prompt_tokens),
            SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
            source=source,
            fairness_class=fairness_class,
            arrival_at=arrival_at + i * 1e-6,
        )
        for i in range(n)
    ]


def add_all(scheduler: Scheduler, *groups: list[Request]) -> None:
    for group in groups:
        for request in group:
            scheduler.add(request)


@dataclass(frozen=True)
class Step:
    plan: StepPlan
    outputs: list[RequestOutput]

    @property
    def tokens(self) -> dict[str, int]:
        """Request → tokens that the step computed of it."""
        return {c.request_id: c.num_tokens for c in self.plan.chunks}

    @property
    def ended(self) -> dict[str, str]:
        return {o.request_id: str(o.finish_reason) for o in self.outputs if o.finish_reason is not None}

    @property
    def drawn(self) -> list[tuple[str, int]]:
        return [(o.request_id, o.output_index) for o in self.outputs if o.token is not None]


def run_step(
    scheduler: Scheduler,
    now: float = 0.0,
    *,
    tokens: Mapping[str, int] | None = None,
    num_real_cells: float = math.inf,
) -> Step:
    """One step as a runner would do it; `tokens` are what the named requests draw. Checks what always holds.

    A runner with fewer cells than the scheduler counts runs out of room.
    """
    plan = scheduler.schedule(now)
    check_plan(scheduler, plan)
    if scheduler.cache.num_used <= num_real_cells:
        result = StepResult(
            [c.num_tokens for c in plan.chunks],
            [(SampledToken((tokens or {}).get(c.request_id, TOKEN)),) if c.num_outputs else () for c in plan.chunks],
            forward_s=0.0,
        )
    else:
        result = StepResult([0] * len(plan.chunks), [()] * len(plan.chunks), forward_s=0.0, out_of_room=True)
    outputs = list(scheduler.update(plan, result, now))
    assert scheduler.cache.num_used - scheduler.cache.num_kept <= sum(r.num_computed_tokens for r in scheduler.running)
    return Step(plan, outputs)


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    config = scheduler.config
    seq_ids = [c.seq_id for c in plan.chunks]
    assert len(set(seq_ids)) == len(seq_ids) <= len(scheduler.running) <= config.max_num_seqs
    assert all(r.status is RequestStatus.RUNNING for r in scheduler.running)
    assert scheduler.cache.num_used <= config.cache.num_cells
    assert sum(c.num_tokens for c in plan.chunks) == plan.num_tokens
    if config.chunked_prefill:
        assert plan.num_tokens <= config.max_num_batched_tokens
    assert all(c.num_tokens > 0 for c in plan.chunks)


def run_until(scheduler: Scheduler, done: Callable[[], bool], *, limit: int = 10_000) -> list[Step]:
    steps: list[Step] = []
    while not done():
        assert len(steps) < limit, f"not done after {limit} steps"
        steps.append(run_step(scheduler))
    return steps


def run_to_end(scheduler: Scheduler, *, limit: int = 10_000) -> list[Step]:
    return run_until(scheduler, lambda: not scheduler.has_work, limit=limit)


def chunk_of(step: Step, request: Request) -> Chunk:
    (chunk,) = [c for c in step.plan.chunks if c.request_id == request.request_id]
    return chunk


# seconds of a step: a constant, per prefill token, per decode row, per million of rows and cells in use
MACHINES = [(0.014, 0.0019, 0.005, 0.01), (0.004, 2e-5, 1e-4, 1e-4), (0.2, 0.03, 0.05, 0.0)]


def teach(
    model: StepTimeModel, a: float, b: float, c: float, d: float, *, steps: int = 200, noise: float = 0.0
) -> None:
    rng = random.Random(5)
    for _ in range(steps):
        num_prefill, num_decode, num_cells = rng.choice([0, 0, 60, 200]), rng.randint(1, 8), rng.randint(200, 4000)
        seconds = a + b * num_prefill + c * num_decode + d * (num_prefill + num_decode) * num_cells / 1e6
        model.observe(num_prefill, num_decode, num_cells, seconds * (1 + rng.uniform(-noise, noise)))
