"""Whose prompt is computed next.

Fair order first: the class, then the source in it, that was served least. Hurry puts a class before lighter ones,
and inside a class the order stays fair. Hurry is borrowed time: a class may run ahead of its share by a bounded
credit, and no further than its cap of the recent service. A class that is backlogged for long has used both up
and shares by weight like the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from homeai.request import Mode, Request, RequestStatus
from homeai.scheduling.budget import Budget
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.fairness import FairShare

URGENCY_CREDIT = 2048.0  # weighted tokens that a class may be ahead of the least served one
TURN_PART = 0.5  # of its target, in which a request may get its turn like everybody
EXPRESS_PART = 0.25  # of its target: a step as long as this is worth ending early

Key = tuple[float | bool, ...]


class ServiceOrder:
    def __init__(
        self, config: SchedulerConfig, share: FairShare, budget: Budget, cache: KVCache, running: Sequence[Request]
    ) -> None:
        self._config = config
        self._share = share
        self._budget = budget
        self._cache = cache
        self._running = running

    def key(self, request: Request, mode: Mode, hurried: Collection[str]) -> Key:
        """Smallest first; `hurried` are classes."""
        share, fairness_class = self._share, request.fairness_class
        weight = share.weight(fairness_class)
        return (
            fairness_class not in hurried,
            -weight if fairness_class in hurried or mode is Mode.SINGLE else 0.0,
            *share.class_key(fairness_class),
            share.of_class(fairness_class)[request.source],
            request.status is not RequestStatus.RUNNING,
            request.arrival_at,
        )

    def hurries(self, request: Request, now: float) -> bool:
        """It had half its time to get a turn like everybody, and has not; and its class may still borrow."""
        target_s = self._target_s(request)
        if target_s is None:
            return False
        num_tokens = request.num_uncomputed_tokens
        if request.status is not RequestStatus.RUNNING:
            num_tokens = max(1, request.num_tokens - request.num_cached_tokens)
        prefill_s = self._budget.times.predict(num_tokens, len(self._running), self._cache.num_used)
        return now + prefill_s >= request.arrival_at + TURN_PART * target_s and self._may_borrow(request)

    def is_express(self, request: Request, full_step_s: float) -> bool:
        """Its first token is worth a short step: a full one would be a good part of the time that it may take."""
        target_s = self._target_s(request)
        return target_s is not None and full_step_s >= EXPRESS_PART * target_s and self._may_borrow(request)

    def _target_s(self, request: Request) -> float | None:
        """None when it is in no hurry, or not any more."""
        return None if request.num_output_tokens else self._config.classes[request.fairness_class].ttft_target_s

    def _may_borrow(self, request: Request) -> bool:
        own = request.fairness_class
        prefilling = (r.fairness_class for r in self._running if r.is_prefilling)
        others = {*self._share.classes.backlogged(), *prefilling} - {own}
        if not others:
            return True
        if self._share.classes.lead(own, others) > URGENCY_CREDIT:
            return False
        cap = self._config.classes[own].share_cap
        return cap >= 1.0 or self._share.recent.share(own) <= cap
