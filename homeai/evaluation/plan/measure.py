"""Times steps of the loaded model here: so many rows at once, and prompts of so many tokens alone.

The steps are the daemon's own (scheduler, llama.cpp, sampling), without the front end beside them. A model on one CPU
thread is timed by that thread's CPU time, so that other programs do not count; any other by the clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from homeai.backends.llamacpp.runner import LlamaCppRunner, load
from homeai.clock import MonotonicClock
from homeai.engine.engine import Engine
from homeai.engine.process import scheduler_config
from homeai.evaluation.cost_fit import MeasuredStep
from homeai.messages import EngineConfig
from homeai.request import Request, SamplingParams
from homeai.scheduling.scheduler import Scheduler

PROMPT_TOKENS: Final = 32  # before the rows that are timed
WARM_STEPS: Final = 2  # not counted: caches and threads wake up
NUM_STEPS: Final = 16
MANY_TOKENS: Final = 128
ORDINARY_TOKENS: Final = range(100, 200)

Progress = Callable[[int, int], None]


class StepMeter:
    """`config` with seats for as many rows as are asked for. Raises what a load does."""

    def __init__(self, config: EngineConfig, max_rows: int) -> None:
        wide = msgspec.structs.replace(
            config,
            mode="continuous",
            adaptive_budget=False,
            max_chunk_tokens=config.max_num_batched_tokens,
            max_num_seqs=max(max_rows, config.max_num_seqs),
            max_drafts=0,
        )
        self.runner: LlamaCppRunner = load(wide, lambda fraction: None)
        self.runner.warm_up()
        self._is_cpu_time = self.runner.device == "cpu" and config.num_threads == 1
        self._rng = random.Random(11)

    def steps(
        self, rows: Sequence[int], prompts: Sequence[int], rounds: int, on_progress: Progress
    ) -> list[MeasuredStep]:
        """By turns, so that a machine whose speed drifts is as fast for each. `on_progress`: done, of how many."""
        turns = [partial(self.decode, count) for count in rows] + [partial(self.prefill, size) for size in prompts]
        steps: list[MeasuredStep] = []
        for done, turn in enumerate(turns * rounds, 1):
            steps += turn()
            on_progress(done, len(turns) * rounds)
        return steps

    def decode(self, rows: int) -> list[MeasuredStep]:
        steps = self._play(rows, PROMPT_TOKENS, WARM_STEPS + NUM_STEPS + 2)
        full = [step for step in steps if not step.num_prefill_tokens and step.num_decode_tokens == rows]
        return full[WARM_STEPS : WARM_STEPS + NUM_STEPS]

    def prefill(self, num_tokens: int) -> list[MeasuredStep]:
        """Short ones several times: a single step is easily disturbed."""
        num_times = max(1, MANY_TOKENS // num_tokens)
        steps = [step for _ in range(num_times) for step in self._play(1, num_tokens, 2)]
        return [step for step in steps if step.num_prefill_tokens == num_tokens]

    def close(self) -> None:
        self.runner.close()

    def _play(self, num_requests: int, num_prompt_tokens: int, num_tokens: int) -> list[MeasuredStep]:
        clock = MonotonicClock()
        scheduler = Scheduler(scheduler_config(self.runner.config, self.runner.limits, device=self.runner.device))
        engine, steps = Engine(scheduler, self.runner, clock), list[MeasuredStep]()
        for number in range(num_requests):
            prompt = [self._rng.choice(ORDINARY_TOKENS) for _ in range(num_prompt_tokens)]
            sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=number)
            engine.add(Request(f"r{number}", prompt, sampling, arrival_at=clock.now(), cache_prompt=False))
        while scheduler.requests:
            steps.append(self._step(engine))
        engine.step()  # gives up what the sequences held
        return steps

    def _step(self, engine: Engine) -> MeasuredStep:
        started_at = time.thread_time()
        step = engine.step()
        step_s = time.thread_time() - started_at if self._is_cpu_time else step.step_s
        return MeasuredStep(
            num_prefill_tokens=step.plan.num_prefill_tokens,
            num_decode_tokens=step.plan.num_decode_tokens,
            num_context_tokens=step.plan.num_context_tokens,
            num_attended_tokens=step.plan.num_attended_tokens,
            kv_used=engine.scheduler.cache.num_used,
            num_outputs=step.plan.num_outputs,
            num_near_tokens=step.plan.num_near_tokens,
            step_s=step_s,
            forward_s=step_s * step.result.forward_s / step.step_s,
        )
