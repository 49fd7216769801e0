"""The engine dies and the next one comes: streams go on behind their last token, leavers leave, the culprit fails."""

from __future__ import annotations

import pytest

from homeai.errors import PoisonedRequest
from homeai.messages import AddRequest
from homeai.request import FinishReason
from homeai.server.stream import Stream
from tests.server.fakes import finished, output, step
from tests.server.test_client import Engine, tokens


def adds(engine: Engine) -> list[AddRequest]:
    return [message for message in engine.heard if isinstance(message, AddRequest)]


def die(engine: Engine) -> list[AddRequest]:
    """What the next engine is told at once."""
    before = len(adds(engine))
    engine.client.recover("a fault", by_itself=True)
    return adds(engine)[before:]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def stream(engine: Engine) -> Stream:
    stream = engine.submit("a")
    engine.client.handle(step(output("a", 0, 10), output("a", 1, 11), admitted=("a",)))
    return stream


async def test_stream_goes_on_behind_the_tokens_that_it_has(engine: Engine, stream: Stream) -> None:
    (add,) = die(engine)
    assert (add.request_id, add.output_token_ids) == ("a", [10, 11])
    engine.client.handle(step(output("a", 2, 12), finished("a"), admitted=("a",)))
    assert tokens(list(stream.read())) == [(0, 10), (0, 11), (0, 12)]
    assert stream.is_over
    assert engine.is_empty


async def test_pause_is_not_a_gap_between_tokens(engine: Engine, stream: Stream) -> None:
    gaps: list[float] = []
    engine.client.on_token_gap = lambda fairness_class, gap_s: gaps.append(gap_s)
    die(engine)
    engine.client.handle(step(output("a", 2, 12), admitted=("a",)))
    assert gaps == []


async def test_who_had_left_does_not_come_back(engine: Engine, stream: Stream) -> None:
    engine.client.abort(stream)
    assert die(engine) == []
    assert [record.finish_reason for record in engine.records] == [FinishReason.ABORT]
    assert engine.is_empty


async def test_answer_whose_stop_string_was_found_is_complete(engine: Engine, stream: Stream) -> None:
    engine.client.stop(stream, 0, num_output_tokens=1)
    assert die(engine) == []
    list(stream.read())
    assert stream.is_over
    assert [(r.finish_reason, r.generation.num_output_tokens) for r in engine.records] == [(FinishReason.STOP, 1)]


async def test_who_leaves_before_it_came_back_is_forgotten(engine: Engine, stream: Stream) -> None:
    other = engine.submit("b")
    engine.client.handle(step(output("b", 0), admitted=("b",)))
    (back,) = die(engine)
    assert back.request_id == "a"
    engine.client.abort(other)
    engine.client.handle(step(output("a", 2), admitted=("a",)))
    assert [add.request_id for add in adds(engine)] == ["a", "b", "a"]


async def test_request_that_ends_the_engine_twice_fails_alone(engine: Engine, stream: Stream) -> None:
    other = engine.submit("b")
    die(engine)
    engine.client.handle(step(output("a", 2), admitted=("a",)))
    (back,) = die(engine)
    assert back.request_id == "a"
    with pytest.raises(PoisonedRequest, match="ended the engine twice, and is not tried again: a fault"):
        await other.wait()
    engine.client.handle(step(finished("a")))
    assert [event.finish_reason for event in stream.read()][-1] is FinishReason.STOP
    assert engine.is_empty


async def test_newcomer_waits_until_all_are_back(engine: Engine, stream: Stream) -> None:
    die(engine)
    engine.submit("new")
    assert [add.request_id for add in adds(engine)] == ["a", "a"]
    engine.client.handle(step(output("a", 2), admitted=("a",)))
    assert [add.request_id for add in adds(engine)] == ["a", "a", "new"]
