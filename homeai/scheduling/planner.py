"""What one step computes.

1. Room: while the decodes of this step do not fit the cache, park a victim.
2. Decodes of all running requests, one token each.
3. Prefill, as much as the step can carry in time (`Budget`): of the running requests that miss more than a token
   and the queue's heads always the next in `ServiceOrder`. A long prompt therefore cannot keep a newcomer of another
   source out, however many chunks it has left.
4. Nothing at all could run: park a victim and decide again.
"""

from __future__ import annotations

from collections.abc import Sequence

from homeai.request import Mode, Request, RequestStatus, WaitReason
from homeai.scheduling.admission import Admission
from homeai.scheduling.batch import DECODE_RESERVE, Batch
from homeai.scheduling.budget import Budget
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.order import ServiceOrder
from homeai.scheduling.plan import Chunk, StepPlan
from homeai.scheduling.preemption import choose_victim, eligible_for_hurry, fewest_victims, victim_of_monopoly
from homeai.scheduling.skips import Skips
from homeai.scheduling.start import CommonStart

MAX_REPLAYED_TOKENS = 16
FIRST_LOOK_S = 0.03  # the first step of a request that comes alone: others of the same burst are on their way
OF_A_CLASS = frozenset({WaitReason.CLASS_CAP})
OF_A_SOURCE = frozenset({WaitReason.SOURCE_CAP, WaitReason.SHARED_PREFIX})


class StepPlanner:
    def __init__(self, config: SchedulerConfig, share: FairShare, batch: Batch, cache: KVCache, budget: Budget) -> None:
        self._config = config
        self._share = share
        self._batch = batch
        self._cache = cache
        self._budget = budget
        self._admission = Admission(config, batch, cache)
        self._order = ServiceOrder(config, share, budget, cache, batch.running)
        self._start = CommonStart(config, batch, cache, budget, self._admission)
        self._held: frozenset[str] = frozenset()  # classes whose first tokens are not drawn in this step
        self._skips = Skips()  # who cannot join in this step, and why
        self._window_from: float | None = None  # when the batch to come got its first request

    def note_arrival(self, request: Request) -> None:
        if self._window_from is None:
            self._window_from = request.arrival_at

    def wait_reason(self, request: Request, mode: Mode) -> WaitReason:
        """Why it was not in the last step's batch."""
        return self._skips.reason(request) or self._admission.obstacle(request, mode) or WaitReason.TOKEN_BUDGET

    def plan(self, mode: Mode, now: float) -> StepPlan:
        """Counts are charged and cells taken as planned."""
        plan = StepPlan(mode=mode)
        self._skips.clear()
        self._make_room_for_decodes(now)
        self._plan_decodes(plan)
        self._form_batch(plan, now)
        self._held = self._start.held_classes(mode, now)
        self._plan_prefills(plan, now)
        if not plan.chunks and self._held:  # whom they would wait for cannot run
            self._held = frozenset()
            self._plan_prefills(plan, now)
        running = self._batch.running
        while not plan.chunks and len(running) > 1:
            self._park(self._victim(), WaitReason.KV_SPACE, now)
            self._plan_prefills(plan, now)
        while not plan.chunks and running and self._cache.unpin():  # one alone, and what is pinned takes its room
            self._plan_prefills(plan, now)
        if self._batch.waiting:
            plan.num_idle_rows = self._config.max_num_seqs - len(plan.chunks)
        else:
            self._window_from = None
        plan.predicted_s = self._budget.predict(plan, self._cache.num_used)
        return plan

    # ---- decodes ---------------------------------------------------------------------------------

    def _make_room_for_decodes(self, now: float) -> None:
        running = self._batch.running
        while self._cache.num_available < sum(not r.is_prefilling for r in running):
            if len(running) > 1 or not self._cache.unpin():
                self._park(self._victim(), WaitReason.KV_SPACE, now)

    def _plan_decodes(self, plan: StepPlan) -> None:
        decodes = [request for request in self._batch.running if not request.is_prefilling]
        may_guess = self._may_guess(plan.mode, len(decodes))
        for num_planned, request in enumerate(decodes, 1):
            num_left = len(decodes) - num_planned
            self._plan_chunk(plan, request, 1, self._num_drafts(request, num_left) if may_guess else 0)

    def _may_guess(self, mode: Mode, num_decodes: int) -> bool:
        """Whether the rows that guesses add are taken from nobody: no prompt is read in this step, and nobody waits."""
        if mode is Mode.CONTINUOUS:
            return num_decodes == len(self._batch.running) and not self._batch.waiting
        return mode is Mode.SINGLE

    def _num_drafts(self, request: Request, num_left: int) -> int:
        """`num_left`: decodes that need a cell yet."""
        left = request.sampling.max_tokens - request.num_output_tokens - 1
        room = min(self._config.max_model_len - request.num_tokens, self._cache.num_available - num_left) - 1
        return max(0, min(self._config.max_drafts, left, room))

    # ---- prefill ---------------------------------------------------------------------------------

    def _form_batch(self, plan: StepPlan, now: float) -> None:
        """The baselines: a batch is made up at once, when nothing runs, and stays as it is."""
        batch = self._batch
        if plan.mode not in (Mode.STATIC, Mode.WINDOW) or batch.running or not batch.waiting:
            return
        due = now
        if plan.mode is Mode.WINDOW and self._window_from is not None:
            due = self._window_from + self._config.window_s
        if now < due and len(batch.waiting) < self._config.max_num_seqs:
            plan.wake_at = due
            return
        while (head := batch.waiting.peek()) is not None and self._admission.obstacle(head, plan.mode) is None:
            batch.join(plan, head, now)
        self._window_from = now

    def _plan_prefills(self, plan: StepPlan, now: float) -> None:
        limit = plan.num_tokens + self._prefill_budget(plan)
        if self._plan_starts(plan, limit):
            return
        partial = [r for r in self._batch.running if r.is_prefilling and not _is_starting(r)]
        hurried = {r.fairness_class for r in partial if self._order.hurries(r, now)}
        while plan.num_tokens < limit:
            partial = [r for r in partial if r.status is RequestStatus.RUNNING]  # not parked meanwhile
            heads = self._heads(plan)
            for head in heads:
                if head.fairness_class not in hurried and self._order.hurries(head, now):
                    hurried.add(head.fairness_class)
            candidates = [*partial, *heads]
            request = min(candidates, key=lambda r: self._order.key(r, plan.mode, hurried), default=None)
            if request is None:
                return
            if request.status is RequestStatus.RUNNING:
                partial.remove(request)
            elif not self._let_join(plan, request, now):
                continue
            if not self._plan_prefill(plan, request, limit, heads):
                return

    def _plan_starts(self, plan: StepPlan, limit: int) -> bool:
        """The last prompt tokens of those who waited with it for one another. Whether the step ends with them."""
        started = []
        for request in filter(_is_starting, self._batch.running):
            if self._chunk_size(plan, request, limit - plan.num_tokens):
                self._plan_chunk(plan, request, 1)
                started.append(request)
        return any(self._ends_step(plan, request, limit) for request in started)

    def _prefill_budget(self, plan: StepPlan) -> int:
        config = self._config
        if not config.adaptive_budget:
            return config.max_num_batched_tokens - plan.num_decode_tokens
        targets = [config.classes[r.fairness_class].itl_target_s for r in self._batch.running if r.num_output_tokens]
        tightest = min((t for t in targets if t is not None), default=None)
        return self._budget.prefill_tokens(plan.num_decode_tokens, self._cache.num_used, tightest)

    def _heads(self, plan: StepPlan) -> Sequence[Request]:
        """Who is next of each class, of those that nothing keeps out of this step."""
        if self._skips.everybody is not None or not self._batch.waiting:
            return ()
        if plan.mode in (Mode.STATIC, Mode.WINDOW):
            self._skips.everybody = WaitReason.BATCH_MODE
            return ()
        return list(self._batch.waiting.heads(self._skips))

    def _plan_prefill(self, plan: StepPlan, request: Request, limit: int, heads: Sequence[Request]) -> bool:
        """Whether the step may carry more, of `limit` tokens: it ends early for a first token that is waited for."""
        if not self._wanted(request):  # it waits with its last token
            return True
        left = limit - plan.num_tokens
        if self._wanted(request) > left and self._has_short_follower(request, heads, left // 2):
            left -= left // 2
        if request.request_id in plan.admitted and plan.mode is Mode.SINGLE:
            left = min(left, self._first_look(request))
        count = self._chunk_size(plan, request, left)
        if count == 0:
            return False
        self._plan_chunk(plan, request, count)
        return not (plan.chunks[-1].num_outputs and self._ends_step(plan, request, limit))

    def _first_look(self, request: Request) -> int:
        """How much of a lone newcomer is read before we see who came with it; all of a prompt not much longer."""
        if self._config.mode != "auto" or not self._config.adaptive_budget:
            return self._wanted(request)
        count = self._budget.prefill_tokens(0, self._cache.num_used, FIRST_LOOK_S)
        return count if self._wanted(request) >= 2 * count else self._wanted(request)

    def _ends_step(self, plan: StepPlan, request: Request, limit: int) -> bool:
        """Its first token is waited for: it comes at once instead of with the rest of the `limit` tokens."""
        if not self._config.adaptive_budget:
            return False
        num_decode = plan.num_decode_tokens
        full_step_s = self._budget.times.predict(limit - num_decode, num_decode, self._cache.num_used)
        return self._order.is_express(request, full_step_s)

    def _has_short_follower(self, request: Request, heads: Sequence[Request], room: int) -> bool:
        """A short prompt stands behind this long one of its source, could join, and would be done in `room` tokens."""
        if not self._config.chunked_prefill or len(self._batch.running) >= self._config.max_num_seqs:
            return False
        owner = request.fairness_class, request.source
        return any(
            head is not request
            and (head.fairness_class, head.source) == owner
            and head.num_tokens - head.num_cached_tokens <= room
            for head in heads
        )

    def _chunk_size(self, plan: StepPlan, request: Request, left: int) -> int:
        """Tokens of `request` to compute in this step; 0 when `left` or the cache has no more."""
        config = self._config
        want = self._wanted(request)
        room = self._cache.num_available
        if config.chunked_prefill:
            ceiling = config.max_num_batched_tokens if plan.mode is Mode.SINGLE else config.max_chunk_tokens
            return max(0, min(want, ceiling, left, room))
        fits = want <= left or plan.num_prefill_tokens == 0  # one whole prompt may exceed the budget
        return want if fits and want <= room else 0

    def _wanted(self, request: Request) -> int:
        """Its prompt, and then the rest. A few output tokens are computed again one by one, as they were the first
        time: in one go their logits differ by enough to change the text more often."""
        num_replayed = request.num_output_tokens - 1
        if 0 < num_replayed <= MAX_REPLAYED_TOKENS:
            return max(request.num_prompt_tokens - request.num_computed_tokens, 1)
        is_held = request.num_output_tokens == 0 and request.fairness_class in self._held
        return request.num_uncomputed_tokens - int(is_held and request.sampling.max_tokens > 1)

    # ---- joining, and who gives way for it -------------------------------------------------------

    def _let_join(self, plan: StepPlan, request: Request, now: float) -> bool:
        """Let it run if it can, parking somebody for it where it may; else note why not."""
        reason = self._admission.obstacle(request, plan.mode)
        if reason in (WaitReason.SEQUENCE_SLOT, WaitReason.KV_SPACE):
            for victim in self._victims_for(request, reason, plan, now):
                self._withdraw(plan, victim)
                self._park(victim, reason, now)
            reason = self._admission.obstacle(request, plan.mode)
        if reason is None:
            self._batch.join(plan, request, now)
            return True
        if reason in OF_A_CLASS:
            self._skips.skip_class(request, reason)
        elif reason in OF_A_SOURCE:
            self._skips.skip_source(request, reason)
        else:
            self._skips.everybody = reason  # the ones behind it do not overtake
        return False

    def _victims_for(self, request: Request, reason: WaitReason, plan: StepPlan, now: float) -> list[Request]:
        """Whom to park so that `request` can join; nobody if that would not be enough."""
        running, weight = self._batch.running, self._share.weight
        if plan.mode is not Mode.CONTINUOUS or self._batch.ran_out:
            return []
        wants_seat = reason is WaitReason.SEQUENCE_SLOT
        if self._order.hurries(request, now):
            eligible = eligible_for_hurry(running, request, weight, now)
            if wants_seat:
                victims = fewest_victims(eligible, 1, lambda r: 1, weight)
            else:
                missing = self._admission.shortage(request)
                victims = fewest_victims(eligible, missing, lambda r: r.num_tokens + DECODE_RESERVE, weight)
            if victims:
                return victims
        if not wants_seat or self._config.max_num_seqs == 1:
            return []
        victim = victim_of_monopoly(running, request, weight, now)
        return [] if victim is None else [victim]

    def _victim(self) -> Request:
        return choose_victim(self._batch.running, self._share.weight)

    def _park(self, request: Request, reason: WaitReason, now: float) -> None:
        self._batch.park(request, now)
        self._skips.skip_source(request, reason)  # not in this step again

    # ---- chunks ----------------------------------------------------------------------------------

    def _plan_chunk(self, plan: StepPlan, request: Request, count: int, num_drafts: int = 0) -> None:
        seq = self._batch.sequences[request.request_id]
        start = request.num_computed_tokens
        reaches_end = start + count == request.num_tokens
        num_outputs = int(reaches_end and request.sampling.max_tokens > 0)
        self._cache.reserve(count + num_drafts)
        self._share.charge_tokens(request, start + count + num_outputs)
        plan.chunks.append(Chunk(request.request_id, seq.seq_id, start, count, num_outputs, num_drafts))
        self._count(plan, request, count)

    def _withdraw(self, plan: StepPlan, request: Request) -> None:
        """Take a request out of the step again; what was charged for it is not charged twice."""
        for names in (plan.admitted, plan.resumed):
            if request.request_id in names:
                names.remove(request.request_id)
        for chunk in plan.chunks:
            if chunk.request_id == request.request_id:
                plan.chunks.remove(chunk)
                self._cache.commit(self._batch.sequences[request.request_id], chunk.num_tokens + chunk.num_drafts, [])
                self._count(plan, request, -chunk.num_tokens)
                return

    def _count(self, plan: StepPlan, request: Request, count: int) -> None:
        if request.is_prefilling:
            plan.num_prefill_tokens += count
        else:
            plan.num_decode_tokens += count


def _is_starting(request: Request) -> bool:
    """Its prompt is read but for the last token, whose logits give its first one."""
    return request.num_output_tokens == 0 and request.num_uncomputed_tokens == 1
