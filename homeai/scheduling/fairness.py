"""Who has had how much: Virtual Token Counters (Sheng et al., OSDI '24), per class and per source in it.

A counter grows by the weighted tokens its owner was served; the smallest goes next. Two levels: classes
share by weight, the sources of one class share equally. A returning owner is lifted, so that idling earns
no credit; recomputation is free (the caller charges each token once).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from homeai.request import Request

DEFAULT_WEIGHT: Final = 1.0
MAX_IDLE_SOURCES: Final = 4096
RECENT_HALF_LIFE_S: Final = 10.0
SHOWN_HALF_LIFE_S: Final = 60.0
LEAST_SERVICE: Final = 0.01  # weighted tokens: whoever had less is forgotten

Owner = TypeVar("Owner", bound=Hashable)


class VirtualCounter:
    """Counters of one level. `backlogged` owners are those with something waiting."""

    def __init__(self) -> None:
        self._value: dict[str, float] = {}
        self._backlog: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._last_to_leave: str | None = None

    def __getitem__(self, owner: str) -> float:
        return self._value.get(owner, 0.0)

    def charge(self, owner: str, cost: float) -> None:
        self._value[owner] = self._value.get(owner, 0.0) + cost

    def enter(self, owner: str) -> None:
        """`owner` has one more request waiting; its first lifts the counter."""
        if owner not in self._backlog:
            self._value[owner] = max(self[owner], self._floor())
        self._backlog[owner] = self._backlog.get(owner, 0) + 1

    def leave(self, owner: str) -> None:
        self._backlog[owner] -= 1
        if self._backlog[owner] == 0:
            del self._backlog[owner]
            self._last_to_leave = owner
            self._forget_idle()

    def start(self, owner: str) -> None:
        """`owner` has one more request running."""
        self._running[owner] = self._running.get(owner, 0) + 1

    def end(self, owner: str) -> None:
        self._running[owner] -= 1
        if self._running[owner] == 0:
            del self._running[owner]

    def _floor(self) -> float:
        """Of those that wait the least served; when nobody does, those that run or came last had their share."""
        if self._backlog:
            return min(self._value[owner] for owner in self._backlog)
        last = self[self._last_to_leave] if self._last_to_leave is not None else 0.0
        return max((self[owner] for owner in self._running), default=0.0) if self._running else last

    def _forget_idle(self) -> None:
        """Names come from clients: keep the table bounded, lowest counters first (a lift restores those)."""
        if len(self._value) <= MAX_IDLE_SOURCES + len(self._backlog) + len(self._running):
            return
        idle = [owner for owner in self._value if owner not in self._backlog and owner not in self._running]
        idle.sort(key=self._value.__getitem__)
        for owner in idle[: len(idle) // 2]:
            if owner != self._last_to_leave:
                del self._value[owner]

    def backlogged(self) -> Collection[str]:
        return self._backlog.keys()

    def lead(self, owner: str, others: Iterable[str]) -> float:
        """How far `owner` is ahead of the least served of `others`; 0 when there are none."""
        least = min((self[other] for other in others if other != owner), default=self[owner])
        return max(0.0, self[owner] - least)


class RecentService(Generic[Owner]):
    """What each owner was served lately, in weighted tokens that fade with a half-life."""

    def __init__(self, half_life_s: float = RECENT_HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self._value: dict[Owner, float] = {}
        self._faded_at = 0.0

    def fade(self, now: float) -> None:
        elapsed_s = now - self._faded_at
        if elapsed_s < self._half_life_s / 20:  # fine enough, and most steps skip it
            return
        factor = 0.5 ** (elapsed_s / self._half_life_s)
        faded = ((owner, value * factor) for owner, value in self._value.items())
        self._value = {owner: value for owner, value in faded if value >= LEAST_SERVICE}
        self._faded_at = now

    def add(self, owner: Owner, cost: float) -> None:
        self._value[owner] = self._value.get(owner, 0.0) + cost

    def share(self, owner: Owner) -> float:
        """0 to 1."""
        total = sum(self._value.values())
        return self._value.get(owner, 0.0) / total if total else 0.0

    def most(self, count: int) -> list[tuple[Owner, float]]:
        """Who was served most, and how much."""
        return sorted(self._value.items(), key=lambda item: -item[1])[:count]


class FairShare:
    """Both levels together: what was served, in weighted tokens."""

    def __init__(
        self, class_weights: Mapping[str, float], prompt_token_weight: float = 1.0, output_token_weight: float = 2.0
    ) -> None:
        self._weights = class_weights
        self._prompt_token_weight = prompt_token_weight
        self._output_token_weight = output_token_weight
        self.classes = VirtualCounter()
        self.sources: dict[str, VirtualCounter] = {}
        self.recent: RecentService[str] = RecentService()
        self.lately: RecentService[tuple[str, str]] = RecentService(SHOWN_HALF_LIFE_S)  # by class and source, to show

    def weight(self, fairness_class: str) -> float:
        return self._weights.get(fairness_class, DEFAULT_WEIGHT)

    def of_class(self, fairness_class: str) -> VirtualCounter:
        counter = self.sources.get(fairness_class)
        if counter is None:
            counter = self.sources[fairness_class] = VirtualCounter()
        return counter

    def charge_tokens(self, request: Request, end: int) -> None:
        """Charge the request's source for its tokens up to `end`, drawn ones too, each once in its life."""
        old = request.num_charged_tokens
        if end <= old:
            return
        request.num_charged_tokens = end
        num_prompt = max(0, min(end, request.num_prompt_tokens) - old)
        cost = num_prompt * self._prompt_token_weight + (end - old - num_prompt) * self._output_token_weight
        self.charge(request.fairness_class, request.source, cost)

    def start(self, fairness_class: str, source: str) -> None:
        self.classes.start(fairness_class)
        self.of_class(fairness_class).start(source)

    def end(self, fairness_class: str, source: str) -> None:
        self.classes.end(fairness_class)
        self.of_class(fairness_class).end(source)

    def charge(self, fairness_class: str, source: str, cost: float) -> None:
        self.classes.charge(fairness_class, cost / self.weight(fairness_class))
        self.of_class(fairness_class).charge(source, cost)
        self.recent.add(fairness_class, cost)
        self.lately.add((fairness_class, source), cost)

    def fade(self, now: float) -> None:
        self.recent.fade(now)
        self.lately.fade(now)

    def enter(self, fairness_class: str, source: str) -> None:
        self.classes.enter(fairness_class)
        self.of_class(fairness_class).enter(source)

    def leave(self, fairness_class: str, source: str) -> None:
        self.of_class(fairness_class).leave(source)
        self.classes.leave(fairness_class)

    def class_key(self, fairness_class: str) -> tuple[float, float]:
        """Smallest first; a tie goes to the heavier class."""
        return self.classes[fairness_class], -self.weight(fairness_class)
