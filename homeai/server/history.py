"""What happened to the model, for people who look later: which state it was in when, and the events. Bounded.

Pure: instants are Unix time, and come from whoever tells. Nothing of it is kept when the daemon ends.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from homeai.status import EventStatus, SpanStatus

MAX_SPANS: Final = 256
MAX_EVENTS: Final = 60
MODE: Final = "mode"
UNTOLD: Final = {"warming", "draining"}  # on the way to what is told


class History:
    """`num_changes` grows with everything that is told here."""

    def __init__(self) -> None:
        self._spans: deque[SpanStatus] = deque(maxlen=MAX_SPANS)
        self._events: deque[EventStatus] = deque(maxlen=MAX_EVENTS)
        self._mode: str | None = None
        self.num_changes = 0

    @property
    def spans(self) -> list[SpanStatus]:
        """The oldest first; each lasts until the next begins."""
        return list(self._spans)

    @property
    def events(self) -> list[EventStatus]:
        """The latest first."""
        return list(reversed(self._events))

    def state(self, state: str, at: float, detail: str = "") -> None:
        """It is so from now on. The same state with other words is news, but no other state."""
        if not self._spans or self._spans[-1].state != state:
            self._spans.append(SpanStatus(state, at))
        self.num_changes += 1
        if state not in UNTOLD:
            self._events.append(EventStatus(at, state, detail))

    def event(self, kind: str, at: float, detail: str = "") -> None:
        self._events.append(EventStatus(at, kind, detail))
        self.num_changes += 1

    def mode(self, mode: str, at: float) -> None:
        """Of the last step. A household goes back and forth all day: changes in a row are one event."""
        before, self._mode = self._mode, mode
        if before in (None, mode):
            return
        count = 1
        if self._events and self._events[-1].kind == MODE:
            count += self._events.pop().count
        self._events.append(EventStatus(at, MODE, mode, count))
        self.num_changes += 1
