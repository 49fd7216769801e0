"""What an API key may use: requests per minute, tokens per day, tokens of one request. Pure: `now` is Unix time."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Final

from homeai.errors import PromptTooLong, QuotaExceeded, TooManyRequests
from homeai.keys import Key

MINUTE_S: Final = 60.0


def day_of(now: float) -> tuple[float, float]:
    """Midnight before and after, by the clock on the wall."""
    today = datetime.fromtimestamp(now).date()
    midnights = (datetime.combine(day, time()) for day in (today, today + timedelta(days=1)))
    before, after = (midnight.timestamp() for midnight in midnights)
    return before, after


class KeyLimits:
    """Counts by a key's name. What already runs may go beyond the day's tokens: it ends as it would."""

    def __init__(self, spent: Mapping[str, int] | None = None, now: float = 0.0) -> None:
        """`spent`: tokens of the day of `now`, by key."""
        self._spent: Counter[str] = Counter(spent or {})
        self._day_ends_at = day_of(now)[1]
        self._came: defaultdict[str, deque[float]] = defaultdict(deque)  # within the last minute, oldest first

    def check(self, key: Key | None, now: float, *, counts_requests: bool = True) -> None:
        """Counts one more request, unless only its tokens count.

        Raises `TooManyRequests` or `QuotaExceeded`, with nothing counted.
        """
        if key is None:
            return
        self._check_tokens(key, now)
        if counts_requests:
            self._check_requests(key, now)

    def charge(self, key: str | None, num_tokens: int, now: float) -> None:
        """A request of the key of that name has ended, with so many tokens of prompt and answer."""
        self._begin_day(now)
        if key is not None:
            self._spent[key] += num_tokens

    def room(self, key: Key | None, num_prompt_tokens: int, max_tokens: int) -> int:
        """How many tokens the answer to such a prompt may have, at most `max_tokens`. Raises `PromptTooLong`."""
        if key is None or key.max_context is None:
            return max_tokens
        if num_prompt_tokens >= key.max_context:
            raise PromptTooLong(num_prompt_tokens, key.max_context - 1)
        return min(max_tokens, key.max_context - num_prompt_tokens)

    def _check_tokens(self, key: Key, now: float) -> None:
        self._begin_day(now)
        limit, spent = key.tokens_per_day, self._spent[key.name]
        if limit is not None and spent >= limit:
            raise QuotaExceeded(
                f"key {key.name!r} has used its tokens of today: {spent} of {limit}; it has new ones at midnight",
                retry_after_s=self._day_ends_at - now,
            )

    def _check_requests(self, key: Key, now: float) -> None:
        limit = key.requests_per_minute
        if limit is None:
            return
        came = self._came[key.name]
        while came and not now - MINUTE_S < came[0] <= now:  # later than now: the clock was set back
            came.popleft()
        if len(came) >= limit:
            retry_after_s = came[-limit] + MINUTE_S - now
            raise TooManyRequests(
                f"key {key.name!r} may ask {limit} times a minute; try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )
        came.append(now)

    def _begin_day(self, now: float) -> None:
        if now >= self._day_ends_at:
            self._spent.clear()
            self._day_ends_at = day_of(now)[1]
