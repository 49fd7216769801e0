"""Computing the pins in every new engine before anybody's requests, one after the other, and again when they gave
way to a request that needed all the room."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from homeai.messages import AddRequest, Finished, LoadProgress, RequestFailed, StepOutputs, StepStats, Up
from homeai.request import SamplingParams

log = logging.getLogger("homeai.warmup")


@dataclass(eq=False, slots=True)
class Pin:
    """A beginning of prompts. `problem`: why it is not in the cache and will not be."""

    name: str
    source: str
    fairness_class: str
    token_ids: list[int] = field(default_factory=list)
    problem: str | None = None
    is_kept: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class WarmUp:
    """The one writer of what became of each pin. The supervisor sends what `next` gives and hands news to `take`.

    With `has_pins` it knows nothing until it is told by `know`, which needs the model's vocabulary.
    """

    def __init__(self, *, has_pins: bool = False) -> None:
        self.pins: Sequence[Pin] = ()
        self.is_known = not has_pins
        self._current: Pin | None = None
        self._num_read = 0  # tokens of it
        self._is_idle = True  # the engine, at its last word

    def forget(self, *, has_pins: bool) -> None:
        """Another model comes, whose tokens of them are not known yet."""
        self.pins = ()
        self.is_known = not has_pins
        self._current = None

    def know(self, pins: Sequence[Pin]) -> None:
        self.pins = pins
        self.is_known = True
        for pin in pins:
            if pin.problem is not None:
                log.warning("%s", _said(pin))

    @property
    def notes(self) -> list[str]:
        """What the owner should know."""
        return [_said(pin) for pin in self.pins if pin.problem is not None]

    @property
    def progress(self) -> LoadProgress | None:
        """How far all of them are together, while one is being computed."""
        if self._current is None:
            return None
        total = sum(pin.num_tokens for pin in self.pins if pin.problem is None)
        num_kept = sum(pin.num_tokens for pin in self.pins if pin.is_kept)
        return LoadProgress(f"reading pin {self._current.name}", min(1.0, (num_kept + self._num_read) / total))

    def begin(self) -> None:
        """There is a new engine, and nothing in it."""
        self._current, self._is_idle = None, True
        for pin in self.pins:
            pin.is_kept = False

    def next(self, now: float) -> AddRequest | None:
        """What to compute now; None while something is under way, others are served, or all is done."""
        if self._current is not None or not self._is_idle:
            return None
        pin = self._current = next((pin for pin in self.pins if pin.problem is None and not pin.is_kept), None)
        self._num_read = 0
        if pin is None:
            return None
        return AddRequest(
            request_id=_request_id(pin),
            prompt_token_ids=pin.token_ids,
            sampling=SamplingParams(max_tokens=0),
            source=pin.source,
            fairness_class=pin.fairness_class,
            arrival_at=now,
            is_pin=True,
        )

    def take(self, message: Up) -> Up | None:
        """News of the pins; returns what of it concerns the others."""
        if isinstance(message, StepOutputs):
            self._take_stats(message.stats)
        if self._current is None:
            return message
        request_id = _request_id(self._current)
        if isinstance(message, RequestFailed) and message.request_id == request_id:
            self._end(message.message)
            return None
        if isinstance(message, StepOutputs):
            for finished in message.finished:
                if finished.request_id == request_id:
                    self._end(None if finished.is_pinned else self._why_not(finished))
        return _without(message, request_id)

    def _take_stats(self, stats: StepStats) -> None:
        self._is_idle = not (stats.num_running or stats.num_waiting)
        if self._current is not None:
            self._num_read += stats.num_prefill_tokens
        elif stats.num_pinned_seqs < sum(pin.is_kept for pin in self.pins):
            log.warning("the pins gave way to a request that needed their room, and come back when it is over")
            for pin in self.pins:
                pin.is_kept = False

    def _end(self, problem: str | None) -> None:
        pin, self._current = self._current, None
        assert pin is not None, "only what was sent ends"
        pin.problem, pin.is_kept = problem, problem is None
        if problem is None:
            log.info("pin %s: %d tokens are in the cache", pin.name, pin.num_tokens)
        else:
            log.warning("%s", _said(pin))

    def _why_not(self, finished: Finished) -> str:
        num_others = sum(pin.is_kept for pin in self.pins)
        return (
            f"the engine has no sequence for it beside {num_others} other pin(s) ({finished.finish_reason}): more need "
            "a larger scheduler.max_cached_seqs, kv_layout unified and a model whose texts can be shared"
        )


def _said(pin: Pin) -> str:
    return f"pin {pin.name!r} is left out: {pin.problem}"


def _request_id(pin: Pin) -> str:
    return f"pin {pin.name}"


def _without(message: Up, request_id: str) -> Up:
    """The message as if the request had never been."""
    if isinstance(message, StepOutputs):
        return msgspec.structs.replace(
            message,
            admitted=[name for name in message.admitted if name != request_id],
            resumed=[name for name in message.resumed if name != request_id],
            finished=[finished for finished in message.finished if finished.request_id != request_id],
            progress=message.progress and [p for p in message.progress if p.request_id != request_id],
        )
    return message
