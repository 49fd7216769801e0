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


class Urgency:
    def __init__(self, policies: Mapping[str, ClassPolicy], share: FairShare) -> None:
        self._policies = policies
        self._share = share

    def is_due(self, request: Request, now: float, prefill_s: float) -> bool:
        """Its first token is late unless it is computed now; `prefill_s` is what the prompt and a step still take."""
        policy = self._policies.get(request.fairness_class)
        if policy is None or policy.ttft_target_s is None or request.num_output_tokens:
            return False
        return now + prefill_s >= request.arrival_at + policy.ttft_target_s

    def may_hurry(self, fairness_class: str, contenders: Collection[str]) -> bool:
        """`contenders`: classes with a prompt to compute."""
        policy = self._policies[fairness_class]
        others = [other for other in contenders if other != fairness_class]
        if not others:
            return True
        if self._share.classes.lead(fairness_class, others) > URGENCY_CREDIT:
            return False
        return policy.share_cap >= 1.0 or self._share.recent.share(fairness_class) <= policy.share_cap
