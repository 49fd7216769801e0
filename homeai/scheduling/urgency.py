"""Whose first token is due, and whether that may count.

Hurry is borrowed time: a class may run ahead of its fair share by a bounded credit, and no further than its cap
of the recent service. A class that is backlogged for long has used both up and shares by weight like the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from homeai.policy import ClassPolicy
from homeai.request import Request
from homeai.scheduling.fairness import FairShare

URGENCY_CREDIT = 2048.0  # weighted tokens that a class may be ahead of the least served one
TURN_PART = 0.5
EXPRESS_PART = 0.25


class Urgency:
    def __init__(self, policies: Mapping[str, ClassPolicy], share: FairShare) -> None:
        self._policies = policies
        self._share = share

    def is_due(self, request: Request, now: float, prefill_s: float) -> bool:
        """It had half its time to get a turn like everybody, and has not. `prefill_s`: what it needs in any case."""
        target_s = self._target_s(request)
        return target_s is not None and now + prefill_s >= request.arrival_at + TURN_PART * target_s

    def is_express(self, request: Request, step_s: float) -> bool:
        """A step of `step_s` is a good part of the time that its first token may take."""
        target_s = self._target_s(request)
        return target_s is not None and step_s >= EXPRESS_PART * target_s

    def _target_s(self, request: Request) -> float | None:
        """None when it is in no hurry, or not any more."""
        policy = self._policies.get(request.fairness_class)
        return None if policy is None or request.num_output_tokens else policy.ttft_target_s

    def may_hurry(self, fairness_class: str, contenders: Collection[str]) -> bool:
        """`contenders`: classes with a prompt to compute."""
        policy = self._policies[fairness_class]
        others = [other for other in contenders if other != fairness_class]
        if not others:
            return True
        if self._share.classes.lead(fairness_class, others) > URGENCY_CREDIT:
            return False
        return policy.share_cap >= 1.0 or self._share.recent.share(fairness_class) <= policy.share_cap
