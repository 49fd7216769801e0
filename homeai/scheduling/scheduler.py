"""What runs in the next step, and what became of the last one. Pure: time is an argument.

There are no phases. Every running request has `num_tokens − num_computed_tokens` to catch up with; one
missing token is a decode, more are a prefill, and chunked prefill, a prefix found in the cache, coming back
after parking and speculation are the same thing. After Orca (Yu et al., OSDI '22) and Sarathi-Serve (Agrawal
et al., OSDI '24).

`schedule` decides in this order:
1. room: while the decodes of this step do not fit the cache, park a victim;
2. decodes of all running requests, one token each;
3. prefill, as much as the step can carry in time (`Budget`): of the running requests that miss more than a
   token and the queue's heads, first those whose first token is due, then always the one whose class and
   source were served least (a tie goes to what runs already). A long prompt therefore cannot keep a newcomer of
   another source out, however many chunks it has left;
4. nothing at all could run: park a victim and decide again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import FinishReason, Mode, Request, RequestStatus, WaitReason
from homeai.scheduling.admission import Admission
from homeai.scheduling.budget import Budget
from homeai.scheduling.cache import CacheConfig, KVCache
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.plan import Chunk, KVOp, KVOpKind, RequestOutput, StepPlan, StepResult
from homeai.scheduling.preemption import choose_victim, victim_of_hurry, victim_of_monopoly
from homeai.scheduling.queues import FairQueue
from homeai.scheduling.tree import Sequence
from homeai.scheduling.urgency import Urgency

MAX_STALE_DEADLINES = 64
MAX_PASSED_OVER = 32  # sources that cannot join now, looked at in one step
MIN_CHUNK_TOKENS = 32
NO_TARGET_PATIENCE_S = 0.5
PRIOR_HOST_BYTES_PER_S = 1e9
ONE_SOURCE_ONLY = frozenset({WaitReason.CLASS_CAP, WaitReason.SOURCE_CAP, WaitReason.SHARED_PREFIX})

Key = tuple[float | bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The controls; each can be changed alone. Sizes in tokens, times in seconds."""

    mode: str = "auto"  # auto | continuous | single | static | window
    window_s: float = 0.5
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_chunk_tokens: int = 256
    chunked_prefill: bool = True
    adaptive_budget: bool = True
    max_model_len: int = 16384
    max_drafts: int = 0
    end_token_ids: frozenset[int] = frozenset()
    cache: CacheConfig
    classes: Mapping[str, ClassPolicy]
    sources: Mapping[str, SourcePolicy] = field(default_factory=dict)
    prompt_token_weight: float = 1.0
    output_token_weight: float = 2.0


class Scheduler:
    """Owns every live request's status and counts; nobody else writes them."""

    def __init__(self, config: SchedulerConfig) -> None:
        assert config.max_model_len <= config.cache.num_cells, (
            f"a request of {config.max_model_len} tokens would never fit {config.cache.num_cells} cells"
        )
        assert config.max_num_seqs <= config.max_num_batched_tokens, (
            f"{config.max_num_seqs} decodes would not fit a step of {config.max_num_batched_tokens} tokens"
        )
        assert config.max_num_seqs <= config.cache.num_seqs, "every running request needs a sequence"
        self.config = config
        self.share = FairShare({name: policy.weight for name, policy in config.classes.items()})
        self.waiting = FairQueue(self.share)
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.budget = Budget(config.max_num_batched_tokens, _patience_s(config), MIN_CHUNK_TOKENS)
        self.cache = KVCache(config.cache, config.max_num_seqs, self._is_worth_saving)
        self.num_preemptions = 0  # since the start
        self._urgency = Urgency(config.classes, self.share)
        self._admission = Admission(config, self.cache, self.running)
        self._seqs: dict[str, Sequence] = {}
        self._host_bytes_per_s = PRIOR_HOST_BYTES_PER_S
        self._window_from: float | None = None  # when the batch to come got its first request
        self._passed_over: dict[tuple[str, str], WaitReason] = {}  # (class, source), in the last plan
        self._closed_by: WaitReason | None = None  # why nobody at all could join
        self._deadlines: list[tuple[float, str]] = []  # a heap; entries outlive their requests for a while

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
        noted = self._passed_over.get((request.fairness_class, request.source)) or self._closed_by
        return noted or self._admission.obstacle(request, self.mode) or WaitReason.TOKEN_BUDGET

    # ---- in and out ------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        assert request.request_id not in self.requests, f"request {request.request_id} is live already"
        assert 0 < request.num_prompt_tokens <= self.config.max_model_len, "the front end checks lengths"
        self.requests[request.request_id] = request
        request.num_cached_tokens = self.cache.find(self._admission.domain(request), request.prompt_token_ids).length
        self.waiting.push(request)
        if self._window_from is None:
            self._window_from = request.arrival_at
        heapq.heappush(self._deadlines, (self._deadline(request), request.request_id))
        if len(self._deadlines) > 2 * len(self.requests) + MAX_STALE_DEADLINES:
            self._deadlines = sorted((self._deadline(r), r.request_id) for r in self.requests.values())

    def abort(self, request_id: str, now: float, reason: FinishReason = FinishReason.ABORT) -> RequestOutput | None:
        """End a request in whatever state it is. Unknown or finished ones are ignored: a repeat is harmless."""
        request = self.requests.get(request_id)
        return self._finish(request, reason, now) if request is not None else None

    def expire(self, now: float) -> list[RequestOutput]:
        """End what has waited longer than its class allows and never ran."""
        outputs = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = self.requests.get(heapq.heappop(self._deadlines)[1])
            if request is None or request.status is not RequestStatus.WAITING:
                continue
            if self._deadline(request) <= now:  # else the entry was of an earlier request of this name
                outputs.append(self._finish(request, FinishReason.TIMEOUT, now))
        return outputs

    def _deadline(self, request: Request) -> float:
        policy = self.config.classes.get(request.fairness_class)
        return request.arrival_at + (policy.queue_timeout_s if policy else math.inf)

    # ---- a step ----------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """The next step. Counts are charged and cells taken as planned; `update` corrects them."""
        plan = StepPlan(mode=self.mode)
        self.share.recent.fade(now)
        self._passed_over.clear()
        self._closed_by = None
        self._make_room_for_decodes(now)
        self._plan_decodes(plan)
        self._form_batch(plan, now)
        self._plan_prefills(plan, now)
        while not plan.chunks and len(self.running) > 1:
            self._park(self._victim(), now)
            self._plan_prefills(plan, now)
        if not plan.chunks and self.running:
            self.cache.unpin()  # one request alone, and what is pinned takes its room
            self._plan_prefills(plan, now)
        if self.waiting:
            plan.num_idle_rows = self.config.max_num_seqs - len(plan.chunks)
        plan.predicted_s = self.budget.predict(plan, self.cache.num_used)
        plan.kv_ops = self.cache.take_pending_ops()
        return plan

    def update(self, plan: StepPlan, result: StepResult, now: float) -> Iterator[RequestOutput]:
        """Take in what the runner did; the gains and ends of this step, one by one. To be read to its end."""
        self._take_op_results(plan, result)
        for chunk, num_computed, tokens in zip(plan.chunks, result.num_computed, result.sampled, strict=True):
            request, seq = self.requests[chunk.request_id], self._seqs[chunk.request_id]
            computed = request.token_ids(chunk.start, chunk.start + num_computed)
            self.cache.commit(seq, chunk.num_tokens + chunk.num_drafts, computed)
            request.num_computed_tokens += num_computed
            if tokens and request.first_token_at is None:
                request.first_token_at = now
            num_accepted = len(tokens) - 1
            for index, token in enumerate(tokens):
                request.output_token_ids.append(token.token_id)
                request.num_output_tokens += 1
                finish = self._finish_reason(request, token.token_id)
                if num_accepted and (finish is not None or index == num_accepted):
                    self._take_accepted(request, seq, num_accepted, index)
                if finish is not None:
                    self._finish(request, finish, now)
                yield RequestOutput(request.request_id, request.num_output_tokens - 1, token, finish)
                if finish is not None:
                    break
            if not tokens and request.sampling.max_tokens == 0 and request.num_uncomputed_tokens == 0:
                yield self._finish(request, FinishReason.LENGTH, now)
        if result.out_of_room:
            yield from self._relieve(now)

    def learn(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        """How long the step really took."""
        if plan.chunks and not result.out_of_room:
            num_rows = plan.num_decode_tokens + result.num_draft_tokens
            self.budget.times.observe(plan.num_prefill_tokens, num_rows, self.cache.num_used, step_s - result.kv_ops_s)

    def _take_op_results(self, plan: StepPlan, result: StepResult) -> None:
        num_bytes = 0
        for op, done in zip(plan.kv_ops, result.kv_op_results, strict=False):
            num_bytes += done.num_bytes
            if done.num_bytes:
                self._count_moved(op, done.num_bytes)
            if done.ok:
                continue
            if op.kind is KVOpKind.SAVE:
                self.cache.host.discard(op.other)
                continue
            lost = self.cache.lose(op.seq_id)
            for request_id, seq in self._seqs.items():
                if seq is lost:
                    self.requests[request_id].num_computed_tokens = 0
        if num_bytes and result.kv_ops_s > 0:
            self._host_bytes_per_s += 0.2 * (num_bytes / result.kv_ops_s - self._host_bytes_per_s)

    def _count_moved(self, op: KVOp, num_bytes: int) -> None:
        """Moving is counted for the request that was parked, or came back."""
        if op.kind is KVOpKind.SAVE:
            request_id = self.cache.host.parked_by(op.other)
        else:
            request_id = next((name for name, seq in self._seqs.items() if seq.seq_id == op.seq_id), None)
        request = self.requests.get(request_id or "")
        if request is not None:
            request.num_moved_bytes += num_bytes

    def _take_accepted(self, request: Request, seq: Sequence, num_accepted: int, num_kept: int) -> None:
        """Drafts that were right are computed already; what lies behind an end is cut off again."""
        end = request.num_computed_tokens + num_kept
        if num_kept:
            self.cache.commit(seq, 0, request.token_ids(request.num_computed_tokens, end))
        request.num_computed_tokens = end
        request.num_accepted_tokens += num_kept
        self._charge(request, end, 1)
        if num_kept < num_accepted:
            self.cache.truncate(seq, end)

    # ---- decisions, in the order of the module's docstring -------------------------------------------

    def _make_room_for_decodes(self, now: float) -> None:
        while self.cache.num_available < sum(not r.is_prefilling for r in self.running):
            self._park(self._victim(), now)

    def _plan_decodes(self, plan: StepPlan) -> None:
        for request in self.running:
            if not request.is_prefilling:
                self._plan_chunk(plan, request, 1, self._num_drafts(plan, request))
                plan.num_decode_tokens += 1

    def _num_drafts(self, plan: StepPlan, request: Request) -> int:
        """Guessing pays while the rows it adds are not taken from anybody."""
        if plan.mode is not Mode.SINGLE:
            return 0
        left = request.sampling.max_tokens - request.num_output_tokens - 1
        room = min(self.config.max_model_len - request.num_tokens - 1, self.cache.num_available - 1)
        return max(0, min(self.config.max_drafts, left, room))

    def _form_batch(self, plan: StepPlan, now: float) -> None:
        """The baselines: a batch is made up at once, when nothing runs, and stays as it is."""
        if plan.mode not in (Mode.STATIC, Mode.WINDOW) or self.running or not self.waiting:
            return
        due = now
        if plan.mode is Mode.WINDOW and self._window_from is not None:
            due = self._window_from + self.config.window_s
        if now < due and len(self.waiting) < self.config.max_num_seqs:
            plan.wake_at = due
            return
        while (head := self.waiting.peek()) is not None and self._admission.obstacle(head, plan.mode) is None:
            self._admit(plan, head, now)
        self._window_from = now if self.waiting else None

    def _plan_prefills(self, plan: StepPlan, now: float) -> None:
        budget = self._prefill_budget(plan)
        partial = [r for r in self.running if r.is_prefilling]
        hurried = {r.fairness_class for r in partial if self._hurries(r, now)}
        while plan.num_prefill_tokens < budget:
            partial = [r for r in partial if r.status is RequestStatus.RUNNING]  # not parked meanwhile
            heads = self._heads(plan)
            hurried |= {r.fairness_class for r in heads if r.fairness_class not in hurried and self._hurries(r, now)}
            request = min([*partial, *heads], key=lambda r: self._key(r, plan.mode, hurried), default=None)
            if request is None:
                return
            if request.status is RequestStatus.RUNNING:
                partial.remove(request)
            elif not self._join(plan, request, now):
                continue
            if not self._plan_prefill(plan, request, budget):
                return

    def _plan_prefill(self, plan: StepPlan, request: Request, budget: int) -> bool:
        """Whether the step may carry more: it ends early for a first token that would be waited for."""
        count = self._chunk_size(plan, request, budget)
        if count == 0:
            return False
        self._plan_chunk(plan, request, count)
        plan.num_prefill_tokens += count
        if not plan.chunks[-1].num_outputs or not self.config.adaptive_budget:
            return True
        full_step_s = self.budget.times.predict(budget, plan.num_decode_tokens, self.cache.num_used)
        return not (self._urgency.is_express(request, full_step_s) and self._may_hurry(request))

    def _prefill_budget(self, plan: StepPlan) -> int:
        config = self.config
        if not config.adaptive_budget:
            return config.max_num_batched_tokens - plan.num_decode_tokens
        targets = [config.classes[r.fairness_class].itl_target_s for r in self.running if r.num_output_tokens]
        tightest = min((t for t in targets if t is not None), default=None)
        return self.budget.prefill_tokens(plan.num_decode_tokens, self.cache.num_used, tightest)

    def _heads(self, plan: StepPlan) -> list[Request]:
        """Who is next of each class, of those that nothing keeps out of this step."""
        if self._closed_by is not None or not self.waiting:
            return []
        if plan.mode in (Mode.STATIC, Mode.WINDOW):
            self._closed_by = WaitReason.BATCH_MODE
            return []
        return list(self.waiting.heads(self._passed_over))

    def _join(self, plan: StepPlan, request: Request, now: float) -> bool:
        """Let it run if it can, parking somebody for it where it may; else note why not."""
        while (reason := self._admission.obstacle(request, plan.mode)) is not None:
            if reason in ONE_SOURCE_ONLY and len(self._passed_over) < MAX_PASSED_OVER:
                self._passed_over[request.fairness_class, request.source] = reason
                return False
            victim = self._victim_for(request, reason, plan, now)
            if victim is None:
                self._closed_by = reason  # the ones behind it do not overtake
                return False
            self._park(victim, now)
        self._admit(plan, request, now)
        return True

    def _victim_for(self, request: Request, reason: WaitReason, plan: StepPlan, now: float) -> Request | None:
        """Whom to park so that `request` can join. Nobody who is in this step already."""
        if plan.mode is not Mode.CONTINUOUS or reason not in (WaitReason.SEQUENCE_SLOT, WaitReason.KV_SPACE):
            return None
        victim = victim_of_hurry(self.running, request, self.share.weight, now) if self._hurries(request, now) else None
        if victim is None and reason is WaitReason.SEQUENCE_SLOT:
            victim = victim_of_monopoly(self.running, request, self.config.max_num_seqs)
        if victim is not None:
            self._withdraw(plan, victim)
        return victim

    def _key(self, request: Request, mode: Mode, hurried: Collection[str]) -> Key:
        """Smallest first. Hurry puts a class before lighter ones; inside a class the order stays fair."""
        share, fairness_class = self.share, request.fairness_class
        weight = share.weight(fairness_class)
        return (
            fairness_class not in hurried,
            -weight if fairness_class in hurried or mode is Mode.SINGLE else 0.0,
            *share.class_key(fairness_class),
            share.of_class(fairness_class)[request.source],
            request.status is not RequestStatus.RUNNING,
            request.arrival_at,
        )

    def _hurries(self, request: Request, now: float) -> bool:
        num_tokens = request.num_uncomputed_tokens
        if request.status is not RequestStatus.RUNNING:
            num_tokens = max(1, request.num_tokens - request.num_cached_tokens)
        prefill_s = self.budget.times.predict(num_tokens, len(self.running), self.cache.num_used)
        return self._urgency.is_due(request, now, prefill_s) and self._may_hurry(request)

    def _may_hurry(self, request: Request) -> bool:
        contenders = {*self.share.classes.backlogged(), *(r.fairness_class for r in self.running if r.is_prefilling)}
        return self._urgency.may_hurry(request.fairness_class, contenders)

    def _chunk_size(self, plan: StepPlan, request: Request, budget: int) -> int:
        """Tokens of `request` to compute in this step; 0 when the budget or the cache has no more."""
        config = self.config
        want = request.num_uncomputed_tokens
        left, room = budget - plan.num_prefill_tokens, self.cache.num_available
        if config.chunked_prefill:
            ceiling = config.max_num_batched_tokens if plan.mode is Mode.SINGLE else config.max_chunk_tokens
            return max(0, min(want, ceiling, left, room))
        fits = want <= left or plan.num_prefill_tokens == 0  # one whole prompt may exceed the budget
        return want if fits and want <= room else 0

    def _plan_chunk(self, plan: StepPlan, request: Request, count: int, num_drafts: int = 0) -> None:
        seq = self._seqs[request.request_id]
        start = request.num_computed_tokens
        reaches_end = start + count == request.num_tokens
        num_outputs = int(reaches_end and request.sampling.max_tokens > 0)
        self.cache.reserve(count + num_drafts)
        self._charge(request, start + count, num_outputs)
        plan.chunks.append(Chunk(request.request_id, seq.seq_id, start, count, num_outputs, num_drafts))

    def _withdraw(self, plan: StepPlan, request: Request) -> None:
        """Take a request's chunk out of the step again; what was charged for it is not charged twice."""
        for chunk in plan.chunks:
            if chunk.request_id == request.request_id:
                plan.chunks.remove(chunk)
                self.cache.commit(self._seqs[request.request_id], chunk.num_tokens + chunk.num_drafts, [])
                if request.is_prefilling:
                    plan.num_prefill_tokens -= chunk.num_tokens
                else:
                    plan.num_decode_tokens -= 1
                return

    def _charge(self, request: Request, end: int, num_outputs: int) -> None:
        """Charge the source for tokens up to `end` and the one drawn there, each once in a request's life."""
        old, new = request.num_charged_tokens, end + num_outputs
        if new <= old:
            return
        request.num_charged_tokens = new
        num_prompt = max(0, min(new, request.num_prompt_tokens) - old)
        cost = num_prompt * self.config.prompt_token_weight + (new - old - num_prompt) * self.config.output_token_weight
        self.share.charge(request.fairness_class, request.source, cost)

    # ---- changes of state ------------------------------------------------------------------------

    def _admit(self, plan: StepPlan, request: Request, now: float) -> None:
        self.waiting.remove(request)
        seq = self.cache.open(
            self._admission.domain(request),
            request.token_ids(0, request.num_tokens),
            now,
            is_new=request.admitted_at is None,
        )
        assert seq is not None, "as many sequences as requests may run"
        self._seqs[request.request_id] = seq
        if request.preempted_at is not None:
            request.parked_s += now - request.preempted_at
            request.preempted_at = None
            request.num_recomputed_tokens += max(0, request.num_computed_tokens - seq.length)
            plan.resumed.append(request.request_id)
        if request.admitted_at is None:
            request.admitted_at = now
            request.num_cached_tokens = seq.length
            request.num_charged_tokens = seq.length
            plan.admitted.append(request.request_id)
        request.num_computed_tokens = seq.length
        request.joined_at = now
        request.status = RequestStatus.RUNNING
        self.running.append(request)

    def _victim(self) -> Request:
        return choose_victim(self.running, self.share.weight)

    def _park(self, request: Request, now: float) -> None:
        """Out of the batch for a while. Its sequence stays as long as nobody needs the room."""
        self._leave_batch(request, now, keep=True, parked_by=request.request_id)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.preempted_at = now
        self.num_preemptions += 1
        self.waiting.push(request, front=True)
        self._passed_over[request.fairness_class, request.source] = WaitReason.SEQUENCE_SLOT  # not in this step again

    def _relieve(self, now: float) -> list[RequestOutput]:
        """The runner found no room although the count said otherwise: one waits, nobody fails."""
        if self.cache.evict():
            return []
        if len(self.running) > 1:
            self._park(self._victim(), now)
            self._admission.ran_out = True
            return []
        return [self._finish(r, FinishReason.LENGTH, now) for r in list(self.running)]

    def _finish_reason(self, request: Request, token_id: int) -> FinishReason | None:
        sampling = request.sampling
        is_end = token_id in self.config.end_token_ids and not sampling.ignore_eos
        if is_end and request.num_output_tokens > sampling.min_tokens:
            return FinishReason.STOP
        if request.num_output_tokens >= sampling.max_tokens or request.num_tokens >= self.config.max_model_len:
            return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason, now: float) -> RequestOutput:
        if request.status is RequestStatus.RUNNING:
            if request.is_pin:
                self.cache.pin(self._seqs[request.request_id])
            self._leave_batch(request, now, keep=request.cache_prompt)
            self._admission.ran_out = False
        else:
            self.waiting.remove(request)
            if request.status is RequestStatus.PREEMPTED:
                self.cache.forget_parked(request.request_id)
            if not self.waiting:
                self._window_from = None
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
        return RequestOutput(request.request_id, request.num_output_tokens, None, reason)

    def _leave_batch(self, request: Request, now: float, *, keep: bool, parked_by: str | None = None) -> None:
        self.running.remove(request)
        self.cache.close(self._seqs.pop(request.request_id), now, keep=keep, parked_by=parked_by)

    def _is_worth_saving(self, num_tokens: int) -> bool:
        """Host memory and back, at the speed of a memory bus, against computing again."""
        save_and_restore_s = 2 * num_tokens * self.config.cache.kv_bytes_per_token / self._host_bytes_per_s
        return save_and_restore_s < self.budget.times.predict(num_tokens, 0, self.cache.num_used)


def _patience_s(config: SchedulerConfig) -> float:
    """The longest step that lets any class still hold its target for who arrives during it."""
    targets = [policy.ttft_target_s for policy in config.classes.values() if policy.ttft_target_s is not None]
    return min(targets) / 2 if targets else NO_TARGET_PATIENCE_S
