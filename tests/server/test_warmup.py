"""Pins are computed one after the other in every new engine, told truly, and never stop a start."""

from __future__ import annotations

import msgspec
import pytest

from homeai.messages import AddRequest, Finished, Heartbeat, Progress, RequestFailed
from homeai.request import FinishReason
from homeai.server.warmup import Pin, WarmUp
from tests.server.fakes import STATS, finished, output, step

IDLE = msgspec.structs.replace(STATS, num_running=0)


def make_pin(name: str, num_tokens: int = 100, problem: str | None = None) -> Pin:
    return Pin(name, "kitchen", "voice", list(range(num_tokens)), problem)


def make_warm_up(*pins: Pin) -> WarmUp:
    warm_up = WarmUp(has_pins=True)
    warm_up.know(pins)
    warm_up.begin()
    return warm_up


def end(name: str, *, is_pinned: bool = True) -> Finished:
    return msgspec.structs.replace(finished(f"pin {name}", FinishReason.LENGTH), is_pinned=is_pinned)


def keep(warm_up: WarmUp) -> AddRequest:
    """Let the engine compute the next one."""
    request = warm_up.next(1.0)
    assert request is not None
    num_kept = sum(pin.is_kept for pin in warm_up.pins)
    stats = msgspec.structs.replace(IDLE, num_pinned_seqs=num_kept + 1)
    warm_up.take(msgspec.structs.replace(step(end(request.request_id.removeprefix("pin "))), stats=stats))
    return request


def test_pins_are_computed_in_order_each_when_the_one_before_is_done() -> None:
    warm_up = make_warm_up(make_pin("a"), make_pin("b"))
    first = warm_up.next(5.0)
    assert first is not None
    assert (first.is_pin, first.sampling.max_tokens, first.arrival_at) == (True, 0, 5.0)
    assert (first.source, first.fairness_class, first.prompt_token_ids) == ("kitchen", "voice", list(range(100)))
    assert warm_up.next(5.0) is None
    warm_up.take(msgspec.structs.replace(step(end("a")), stats=IDLE))
    assert [pin.is_kept for pin in warm_up.pins] == [True, False]
    assert keep(warm_up).request_id == "pin b"
    assert warm_up.next(6.0) is None
    assert [pin.is_kept for pin in warm_up.pins] == [True, True]


def test_nothing_is_known_before_the_vocabulary_is_read() -> None:
    assert not WarmUp(has_pins=True).is_known
    assert WarmUp().is_known
    assert WarmUp().next(1.0) is None


def test_pin_with_a_problem_is_told_and_not_computed() -> None:
    warm_up = make_warm_up(make_pin("a", 0, "it is too short"), make_pin("b"))
    assert warm_up.notes == ["pin 'a' is left out: it is too short"]
    assert keep(warm_up).request_id == "pin b"
    assert warm_up.next(1.0) is None


def test_pin_that_the_engine_does_not_keep_is_told() -> None:
    warm_up = make_warm_up(make_pin("a"), make_pin("b"), make_pin("c"))
    keep(warm_up)
    warm_up.next(1.0)
    warm_up.take(step(end("b", is_pinned=False)))
    warm_up.begin()
    assert [pin.problem is None for pin in warm_up.pins] == [True, False, True]
    (note,) = warm_up.notes
    assert "pin 'b' is left out" in note
    assert "beside 1 other pin(s)" in note
    assert "scheduler.max_cached_seqs" in note


def test_pin_that_the_engine_refuses_is_told() -> None:
    warm_up = make_warm_up(make_pin("a"))
    warm_up.next(1.0)
    assert warm_up.take(RequestFailed("pin a", "no way")) is None
    assert warm_up.notes == ["pin 'a' is left out: no way"]
    assert warm_up.next(1.0) is None


def test_progress_counts_the_tokens_of_all() -> None:
    warm_up = make_warm_up(make_pin("a", 100), make_pin("b", 300), make_pin("c", 50, "too long"))
    assert warm_up.progress is None
    keep(warm_up)
    warm_up.next(1.0)
    warm_up.take(msgspec.structs.replace(step(), stats=msgspec.structs.replace(STATS, num_prefill_tokens=60)))
    progress = warm_up.progress
    assert progress is not None
    assert (progress.stage, progress.fraction) == ("reading pin b", 0.4)


def test_new_engine_has_none_of_them() -> None:
    warm_up = make_warm_up(make_pin("a"))
    keep(warm_up)
    warm_up.begin()
    assert [pin.is_kept for pin in warm_up.pins] == [False]
    assert keep(warm_up).request_id == "pin a"


# ---- pins that gave way --------------------------------------------------------------------------------


def test_pins_that_gave_way_come_back_when_nobody_else_is_served() -> None:
    warm_up = make_warm_up(make_pin("a"))
    keep(warm_up)
    warm_up.take(step())
    assert [pin.is_kept for pin in warm_up.pins] == [False]
    assert warm_up.next(1.0) is None, "somebody runs"
    warm_up.take(msgspec.structs.replace(step(), stats=IDLE))
    assert keep(warm_up).request_id == "pin a"
    assert [pin.is_kept for pin in warm_up.pins] == [True]


# ---- everybody else's news -----------------------------------------------------------------------------


def test_news_of_others_are_passed_on_without_the_pin_s() -> None:
    warm_up = make_warm_up(make_pin("a"))
    warm_up.next(1.0)
    progress = [Progress(name, "running", 3, 1, 0, None) for name in ("r", "pin a")]
    message = step(output("r", 0), finished("r"), end("a"), admitted=("pin a", "r"), progress=progress)
    assert warm_up.take(message) == step(output("r", 0), finished("r"), admitted=("r",), progress=progress[:1])


def test_a_pin_that_comes_back_is_nobody_elses_news() -> None:
    warm_up = make_warm_up(make_pin("a"))
    warm_up.next(1.0)
    resumed = msgspec.structs.replace(step(output("r", 0)), resumed=["pin a"])
    assert warm_up.take(resumed) == step(output("r", 0))


@pytest.mark.parametrize("message", [step(), Heartbeat(1), RequestFailed("r", "no")])
def test_without_pins_nothing_is_touched(message: object) -> None:
    assert WarmUp().take(message) is message  # type: ignore[arg-type]
