"""Who was in an engine that died goes on in the next one; and who ended it twice does not. Pure.

What a request does to an engine it does at its next step. So those that ran come back one after the other, each
when the one before it has drawn a token: computing their prompts again takes its time one by one anyway. Those
that may not have run yet come back together. If the engine dies again, whoever was alone on trial did it and fails
alone; a group that was on trial comes back one by one. An engine that was killed from outside tells nothing about
anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Comeback:
    def __init__(self) -> None:
        self._queue: deque[list[str]] = deque()  # groups that are let back together
        self._on_trial: list[str] = []

    def engine_died(self, ran: Iterable[str], others: Iterable[str], *, by_itself: bool = True) -> str | None:
        """All who are to come back: first those who wait for it since an earlier death, then those who `ran`. Returns
        who is to blame, if that is clear. `by_itself`: nobody killed it.
        """
        tried, self._on_trial = self._on_trial, []
        blamed = tried[0] if by_itself and len(tried) == 1 else None
        held = {request_id for group in self._queue for request_id in group}
        fresh = [r for r in others if r not in held and r not in tried]
        alone = [r for r in ran if r != blamed and r not in held and r not in tried]
        suspects = tried if blamed is None else []
        groups = [*self._queue, *([r] for r in alone), *([r] for r in suspects)]
        self._queue = deque(groups)
        if fresh:
            self._queue.append(fresh)
        return blamed

    @property
    def is_under_way(self) -> bool:
        return bool(self._on_trial or self._queue)

    @property
    def on_trial(self) -> list[str]:
        return list(self._on_trial)

    def join(self, request_ids: Iterable[str]) -> None:
        """Newcomers come after those who are on their way back: else one of them could be mistaken for the culprit."""
        self._queue.append(list(request_ids))

    def next(self) -> list[str]:
        """Whom to let back now: nobody while somebody is on trial."""
        if self._on_trial or not self._queue:
            return []
        self._on_trial = list(self._queue.popleft())
        return list(self._on_trial)

    def passed(self, request_id: str) -> bool:
        """It drew a token, or ended. Whether that ended a trial, so that the `next` may come."""
        if request_id not in self._on_trial:
            return False
        self._on_trial.remove(request_id)
        return not self._on_trial

    def withdraw(self, request_id: str) -> bool:
        """It is not to come back. Whether it was still kept here, unknown to any engine."""
        for group in self._queue:
            if request_id in group:
                group.remove(request_id)
                self._queue = deque(filter(None, self._queue))
                return True
        return False

    def holds(self, request_id: str) -> bool:
        """It is to come back later: no engine has it."""
        return any(request_id in group for group in self._queue)

    def clear(self) -> None:
        """Nobody comes back."""
        self._queue.clear()
        self._on_trial = []
