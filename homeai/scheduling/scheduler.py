"""What runs in the next step, and what became of the last one. Pure: time is an argument.

There are no phases. Every running request has `num_tokens − num_computed_tokens` to catch up with; one
missing token is a decode, more are a prefill, and chunked prefill, a prefix found in the cache, coming back
after parking and speculation are the same thing. After Orca (Yu et al., OSDI '22) and Sarathi-Serve (Agrawal
et al., OSDI '24).

    add ─▶ Batch ◀── StepPlanner (Admission, ServiceOrder, Budget) ──▶ StepPlan ──▶ runner
             ▲                                                                        │
             └───────────────────────── StepOutcome ◀─────── StepResult ◀─────────────┘
"""

from __future__ import annotations

from homeai.request import FinishReason, Mode, Request, RequestStatus, WaitReason
from homeai.scheduling.batch import Batch
from homeai.scheduling.budget import Budget
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.deadlines import Deadlines
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.outcome import StepOutcome
from homeai.scheduling.plan import RequestOutput, StepPlan, StepResult
from homeai.scheduling.planner import StepPlanner
from homeai.scheduling.queues import FairQueue

MIN_CHUNK_TOKENS = 32
MAX_SAVE_S = 0.1  # a save holds everybody's next token up


class Scheduler:
    """The parts, put together. Nobody else writes a request's status and counts."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        weights = {name: policy.weight for name, policy in config.classes.items()}
        self.share = FairShare(weights, config.prompt_token_weight, config.output_token_weight)
        self.budget = Budget(config.max_num_batched_tokens, config.patience_s, MIN_CHUNK_TOKENS)
        self.cache = KVCache(config.cache, config.max_num_seqs, self._is_worth_moving)
        self._batch = Batch(config, self.share, self.cache)
        self._planner = StepPlanner(config, self.share, self._batch, self.cache, self.budget)
        self._outcome = StepOutcome(config, self.share, self._batch, self.cache)
        self._deadlines = Deadlines(config.classes, self._batch.requests)

    @property
    def requests(self) -> dict[str, Request]:
        return self._batch.requests

    @property
    def running(self) -> list[Request]:
        return self._batch.running

    @property
    def waiting(self) -> FairQueue:
        return self._batch.waiting

    @property
    def num_preemptions(self) -> int:
        """Since the start."""
        return self._batch.num_preemptions

    @property
    def has_work(self) -> bool:
        return bool(self.requests) or bool(self.cache.pending_ops)

    @property
    def mode(self) -> Mode:
        """Single as soon as at most one request is live, and back within the same step."""
        if self.config.mode == "auto":
            return Mode.SINGLE if len(self.requests) <= 1 else Mode.CONTINUOUS
        return Mode(self.config.mode)

    def wait_reason(self, request: Request) -> WaitReason | None:
        """Why it was not in the last step's batch; None when it was."""
        if request.status is RequestStatus.RUNNING:
            return None
        return self._planner.wait_reason(request, self.mode)

    def num_kv_cells(self, request: Request) -> int:
        """That it takes while it runs; of a cell that several run in, its part."""
        seq = self._batch.sequences.get(request.request_id)
        return round(self.cache.num_cells_of(seq)) if seq is not None else 0

    # ---- in and out ------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        assert request.request_id not in self.requests, f"request {request.request_id} is live already"
        assert 0 < request.num_prompt_tokens <= self.config.max_model_len, "the front end checks lengths"
        assert request.fairness_class in self.config.classes, f"no class {request.fairness_class!r}"
        self._batch.add(request)
        self._planner.note_arrival(request)
        self._deadlines.add(request)

    def finish_reason(self, request: Request) -> FinishReason | None:
        """Why a request has nothing left to draw, if it has not."""
        return self._outcome.finish_reason(request)

    def abort(self, request_id: str, now: float, reason: FinishReason = FinishReason.ABORT) -> RequestOutput | None:
        """End a request in whatever state it is. Unknown or finished ones are ignored: a repeat is harmless."""
        request = self.requests.get(request_id)
        return self._batch.finish(request, reason, now) if request is not None else None

    def expire(self, now: float) -> list[RequestOutput]:
        """End what has waited longer than its class allows and never ran."""
        return [self._batch.finish(r, FinishReason.TIMEOUT, now) for r in self._deadlines.passed(now)]

    # ---- a step ----------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """The next step. Counts are charged and cells taken as planned; `update` corrects them."""
        self.share.fade(now)
        plan = self._planner.plan(self.mode, now)
        plan.kv_ops = self.cache.take_pending_ops()
        return plan

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Take in what the runner did; the gains and ends of this step."""
        return list(self._outcome.take(plan, result, now))

    def learn(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        """How long the step really took. One that did less than planned teaches nothing."""
        if plan.chunks and not result.out_of_room and all(done.ok for done in result.kv_op_results):
            num_rows = plan.num_decode_tokens + result.num_draft_tokens
            computed_s = step_s - result.kv_ops_s
            num_cells, draws = self.cache.num_used, plan.num_outputs > 0
            self.budget.times.observe(plan.num_prefill_tokens, num_rows, num_cells, computed_s, draws=draws)

    def _is_worth_moving(self, num_tokens: int, num_computed_instead: int) -> bool:
        """To host memory or back: at the speed it was seen to have, against computing; and nobody waits for long."""
        move_s = num_tokens * self.config.cache.kv_bytes_per_token / self._outcome.host_bytes_per_s
        compute_s = self.budget.times.predict(num_computed_instead, 0, self.cache.num_used)
        return move_s < min(compute_s, MAX_SAVE_S)
