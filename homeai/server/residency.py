"""Should the model be loaded? Decided from the settings, the time, and what owner, clients and other programs want.

Pure: `keeper.py` brings what is decided here and what is together. In the order in which they count:

1. the owner gave the device away (`homeai yield`);
2. other programs need it (`pressure.py`), unless the owner asked for the model since that began;
3. the owner sent the model away (`homeai unload`): until somebody asks for it;
4. the owner wants it to stay (`homeai pin`);
5. the policy: `pinned` always; `idle` as long as somebody needs it; `schedule` within the hours, and outside of them
   as `idle`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from homeai.config import ResidencyConfig

DAY_S: Final = 86_400.0
MAX_LOOK_S: Final = 300.0  # clocks are put right, and machines sleep


class Aim(enum.StrEnum):
    RESIDENT = "resident"
    SLEEPING = "sleeping"  # the next request loads it
    YIELDED = "yielded"  # the device is somebody else's


class Wish(enum.StrEnum):
    """What the owner said last."""

    UNLOAD = "unload"
    YIELD = "yield"
    PIN = "pin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`now` and `needed_until` are monotonic, `local` is the time of day at `now`.

    `needed_until`: when the last who wanted the model to stay will not need it any more; infinity for never.
    `wish_until`: when the owner's wish ends by itself. `pressure`: why others need the device, None when nobody does.
    """

    now: float
    local: datetime
    num_live: int = 0
    needed_until: float = -math.inf
    wish: Wish | None = None
    wish_until: float = math.inf
    pressure: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`look_in_s`: when it may be another one although nothing happened; None: not before something does."""

    aim: Aim
    reason: str
    look_in_s: float | None = None


def decide(settings: ResidencyConfig, facts: Facts) -> Verdict:
    """What should be, and why."""
    wish = facts.wish if facts.now < facts.wish_until else None
    wish_s = facts.wish_until - facts.now if wish is not None and facts.wish_until < math.inf else None
    if wish is Wish.YIELD:
        return Verdict(Aim.YIELDED, "the owner gave the device to other programs", wish_s)
    if facts.pressure is not None:
        return Verdict(Aim.YIELDED, facts.pressure)
    if wish is Wish.UNLOAD:
        return Verdict(Aim.SLEEPING, "the owner unloaded the model; the next request loads it")
    if wish is Wish.PIN:
        return Verdict(Aim.RESIDENT, "the owner wants the model to stay")
    if settings.policy == "pinned":
        return Verdict(Aim.RESIDENT, "the model is always loaded (residency.policy: pinned)")
    if settings.policy == "idle":
        return _while_needed(facts)
    return _by_the_clock(settings, facts)


def at_start(settings: ResidencyConfig, local: datetime) -> Verdict:
    """Before anybody asked: with `idle` the start counts as a use."""
    return decide(settings, Facts(now=0.0, local=local, needed_until=1.0 if settings.policy == "idle" else -math.inf))


def opens_in_s(settings: ResidencyConfig, local: datetime) -> float | None:
    """How long the model is refused to whoever asks for it now, by the schedule; None: it is not."""
    if settings.policy != "schedule" or settings.outside_hours == "load":
        return None
    hours = Hours.parse(settings.hours)
    return None if hours.is_within(local) else hours.changes_in_s(local)


def _while_needed(facts: Facts) -> Verdict:
    if facts.num_live:
        return Verdict(Aim.RESIDENT, f"{facts.num_live} request(s) need it")
    if facts.needed_until == math.inf:
        return Verdict(Aim.RESIDENT, "a client asked to keep it loaded")
    left_s = facts.needed_until - facts.now
    if left_s > 0:
        return Verdict(Aim.RESIDENT, "it was used a short while ago", left_s)
    return Verdict(Aim.SLEEPING, "nobody asked for a while; the next request loads it")


def _by_the_clock(settings: ResidencyConfig, facts: Facts) -> Verdict:
    hours = Hours.parse(settings.hours)
    change_s = min(hours.changes_in_s(facts.local), MAX_LOOK_S)
    if hours.is_within(facts.local):
        return Verdict(Aim.RESIDENT, f"it is between {settings.hours} (residency.hours)", change_s)
    if settings.outside_hours == "load" or facts.num_live:
        verdict = _while_needed(facts)
        if verdict.aim is Aim.RESIDENT:
            return Verdict(verdict.aim, verdict.reason, min(change_s, verdict.look_in_s or math.inf))
    again = "the next request loads it" if settings.outside_hours == "load" else "requests are refused until then"
    return Verdict(Aim.SLEEPING, f"it is not between {settings.hours} (residency.hours); {again}", change_s)


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of every day, in seconds from midnight; it may go over midnight. Equal ends: all day."""

    start_s: float
    end_s: float

    @classmethod
    def parse(cls, text: str) -> Hours:
        """`07:00-23:00`, as the settings have checked it."""
        start, _, end = text.partition("-")
        return cls(_seconds(start), _seconds(end))

    def is_within(self, local: datetime) -> bool:
        now_s = _of_day(local)
        if self.start_s < self.end_s:
            return self.start_s <= now_s < self.end_s
        return now_s >= self.start_s or now_s < self.end_s

    def changes_in_s(self, local: datetime) -> float:
        """Until the next beginning or end, whichever comes first."""
        now_s = _of_day(local)
        return min((edge - now_s) % DAY_S or DAY_S for edge in (self.start_s, self.end_s))


def _seconds(time_of_day: str) -> float:
    hour, _, minute = time_of_day.strip().partition(":")
    return 3600.0 * int(hour) + 60.0 * int(minute)


def _of_day(local: datetime) -> float:
    return 3600.0 * local.hour + 60.0 * local.minute + local.second + local.microsecond / 1e6


@dataclass(slots=True)
class Needs:
    """Until when each source needs the model: its last request's end and how long that wanted the model to stay then.

    A source's later request takes back the wish of its earlier one, never another source's.
    """

    default_keep_s: float
    _keep_s: dict[str, float] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)
    _num_sources_checked: int = 0  # more than so many: those of long ago may go

    def came(self, source: str, now: float, keep_s: float | None = None) -> None:
        """A request. `keep_s`: 0 not at all, infinity for good, None as the settings say."""
        self._keep_s[source] = self.default_keep_s if keep_s is None else keep_s
        self.ended(source, now)

    def ended(self, source: str, now: float) -> None:
        """From now on it counts how long the model was to stay after it."""
        self._until[source] = now + self._keep_s.get(source, self.default_keep_s)
        if len(self._until) > self._num_sources_checked:
            past = now - DAY_S  # its last request is over by now
            self._until = {name: until for name, until in self._until.items() if until > past}
            self._keep_s = {name: keep_s for name, keep_s in self._keep_s.items() if name in self._until}
            self._num_sources_checked = 2 * len(self._until)

    def forget(self) -> None:
        """Nobody needs it."""
        self._until.clear()
        self._keep_s.clear()

    @property
    def until(self) -> float:
        return max(self._until.values(), default=-math.inf)
