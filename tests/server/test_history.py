"""Where the model was when, and the events: bounded, and nothing twice."""

from __future__ import annotations

from homeai.server.history import MAX_EVENTS, MAX_SPANS, History
from homeai.status import EventStatus, SpanStatus


def test_a_state_lasts_until_the_next_begins() -> None:
    history = History()
    history.state("loading", 1.0)
    history.state("resident", 3.0, "gemma")
    assert history.spans == [SpanStatus("loading", 1.0), SpanStatus("resident", 3.0)]
    assert history.events[0] == EventStatus(3.0, "resident", "gemma")


def test_same_state_for_another_reason_is_news_and_no_new_span() -> None:
    history = History()
    history.state("loading", 1.0)
    history.state("loading", 2.0, "no room on the GPU")
    assert history.spans == [SpanStatus("loading", 1.0)]
    assert [event.detail for event in history.events] == ["no room on the GPU", ""]


def test_states_on_the_way_are_in_the_timeline_and_no_events() -> None:
    history = History()
    for at, state in enumerate(("loading", "warming", "resident", "draining", "sleeping")):
        history.state(state, float(at))
    assert [span.state for span in history.spans] == ["loading", "warming", "resident", "draining", "sleeping"]
    assert [event.kind for event in history.events] == ["sleeping", "resident", "loading"]


def test_modes_that_change_in_a_row_are_one_event() -> None:
    history = History()
    for at, mode in enumerate(("single", "single", "continuous", "single", "continuous")):
        history.mode(mode, float(at))
    assert history.events == [EventStatus(4.0, "mode", "continuous", count=3)]
    history.event("owner", 5.0, "pin")
    history.mode("single", 6.0)
    assert [(event.kind, event.count) for event in history.events] == [("mode", 1), ("owner", 1), ("mode", 3)]


def test_it_is_bounded_and_tells_that_it_changed() -> None:
    history = History()
    for at in range(2 * MAX_SPANS):
        history.state(("resident", "sleeping")[at % 2], float(at))
    assert len(history.spans) == MAX_SPANS
    assert len(history.events) == MAX_EVENTS
    assert history.num_changes == 2 * MAX_SPANS
