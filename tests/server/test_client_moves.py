"""The engine is about to end, or a class waits: requests are held, given back, and let in again, and none is lost."""

from __future__ import annotations

import pytest

from homeai.errors import NotReady
from homeai.messages import AbortRequests, AddRequest
from homeai.request import FinishReason
from homeai.server.stream import Stream
from homeai.server.supervisor import State
from tests.server.fakes import finished, make_add, output, step, until
from tests.server.test_client import Engine, tokens


def added(engine: Engine) -> list[tuple[str, list[int]]]:
    """Whom the engine was given, with the tokens that they had."""
    return [(m.request_id, m.output_token_ids) for m in engine.heard if isinstance(m, AddRequest)]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def running(engine: Engine) -> Stream:
    """With two tokens."""
    stream = engine.submit("a")
    engine.client.handle(step(output("a", 0, 10), output("a", 1, 11), admitted=("a",)))
    return stream


async def test_who_comes_while_it_is_shut_waits_in_order(engine: Engine) -> None:
    engine.client.shut(begun_may_end=True)
    for request_id in "abc":
        engine.submit(request_id)
    assert engine.heard == []
    assert all(engine.client.waits(request_id) for request_id in "abc")
    engine.client.open()
    assert [request_id for request_id, _ in added(engine)] == ["a", "b", "c"]
    assert not engine.client.waits("a")


async def test_who_is_given_back_goes_on_behind_his_tokens(engine: Engine, running: Stream) -> None:
    engine.client.shut(begun_may_end=False)
    engine.client.take_back(["a"])
    assert engine.aborts == [AbortRequests(["a"])]
    engine.client.handle(step(output("a", 2, 12), finished("a", FinishReason.ABORT)))
    await engine.client.emptied()
    assert not running.is_over
    engine.client.open()
    assert added(engine)[1:] == [("a", [10, 11, 12])]
    engine.client.handle(step(output("a", 3, 13), finished("a"), admitted=("a",)))
    assert [token for _, token in tokens(list(running.read()))] == [10, 11, 12, 13]
    assert engine.is_empty


async def test_what_has_begun_goes_back_where_it_may_end(engine: Engine, running: Stream) -> None:
    engine.submit("b")
    engine.client.shut(begun_may_end=True)
    engine.client.take_back(g.add.request_id for g in engine.client.not_begun)
    assert engine.aborts == [AbortRequests(["b"])]
    engine.client.handle(step(output("b", 0, 20), finished("b", FinishReason.ABORT), admitted=("b",)))  # too late
    assert added(engine)[2:] == [("b", [20])]
    assert [g.add.request_id for g in engine.client.inside] == ["a", "b"]


async def test_stream_moves_as_a_whole(engine: Engine) -> None:
    engine.submit("a", "b")
    engine.client.handle(step(output("a", 0, 10), admitted=("a",)))
    assert engine.client.not_begun == []


async def test_who_ends_before_he_is_given_back_has_ended(engine: Engine, running: Stream) -> None:
    engine.client.shut(begun_may_end=False)
    engine.client.take_back(["a"])
    engine.client.handle(step(finished("a", FinishReason.LENGTH)))
    assert engine.is_empty
    assert [event.finish_reason for event in running.read()][-1] is FinishReason.LENGTH


@pytest.mark.parametrize("is_back", [True, False])
async def test_who_leaves_on_the_way_is_forgotten(engine: Engine, running: Stream, is_back: bool) -> None:
    engine.client.shut(begun_may_end=False)
    engine.client.take_back(["a"])
    if is_back:
        engine.client.handle(step(finished("a", FinishReason.ABORT)))
    engine.client.abort(running)
    if not is_back:
        engine.client.handle(step(finished("a", FinishReason.ABORT)))
    assert engine.is_empty
    assert [record.finish_reason for record in engine.records] == [FinishReason.ABORT]


async def test_engine_that_dies_on_the_way_gives_them_to_the_next(engine: Engine, running: Stream) -> None:
    engine.submit("b")
    engine.client.shut(begun_may_end=False)
    engine.client.take_back(["a"])
    engine.supervisor.ready = None
    engine.client.recover("a fault", by_itself=False)
    assert all(map(engine.client.waits, "ab"))
    await engine.client.emptied()


async def test_those_who_wait_elsewhere_can_be_held_too(engine: Engine, running: Stream) -> None:
    engine.submit("b")
    engine.supervisor.ready = None
    engine.client.shut(begun_may_end=False)
    engine.client.recover("on purpose", by_itself=False)
    engine.client.hold_waiting()
    assert not engine.supervisor.has_unsent("a")
    assert all(map(engine.client.waits, "ab"))
    engine.client.open()
    assert all(map(engine.supervisor.has_unsent, "ab"))


async def test_what_waits_may_ask_for_something_else_then(engine: Engine) -> None:
    engine.client.shut(begun_may_end=True)
    (generation,) = engine.submit("a").generations
    engine.client.replace(generation, make_add("a", num_prompt_tokens=7))
    engine.client.open()
    assert engine.heard == [make_add("a", num_prompt_tokens=7)]


async def test_who_cannot_be_served_any_more_is_told(engine: Engine) -> None:
    engine.client.shut(begun_may_end=True)
    stream, other = engine.submit("a", "b"), engine.submit("c")
    engine.client.refuse(stream, NotReady("another model"))
    with pytest.raises(NotReady, match="another model"):
        await stream.wait()
    engine.client.refuse_waiting(NotReady("the server ends"))
    with pytest.raises(NotReady, match="the server ends"):
        await other.wait()
    assert engine.is_empty


# ---- pause ---------------------------------------------------------------------------------------------


async def test_paused_class_waits_and_what_has_begun_goes_on(engine: Engine, running: Stream) -> None:
    engine.submit("b")
    engine.client.pause("interactive")
    assert engine.aborts == [AbortRequests(["b"])]
    engine.client.handle(step(finished("b", FinishReason.ABORT)))
    engine.submit("c")
    assert [g.add.request_id for g in engine.client.inside] == ["a"]
    engine.client.resume("interactive")
    assert [request_id for request_id, _ in added(engine)] == ["a", "b", "b", "c"]


async def test_pause_outlasts_an_engine(engine: Engine) -> None:
    engine.client.pause("interactive")
    engine.submit("a")
    engine.client.shut(begun_may_end=True)
    engine.client.open()
    assert engine.heard == []


@pytest.mark.parametrize("held_by", ["pause", "shut", "yield"])
async def test_every_wait_is_bounded_by_the_class(held_by: str) -> None:
    engine = Engine(queue_timeout_s=0.0)
    running = engine.submit("a")
    engine.client.handle(step(output("a", 0, 10), admitted=("a",)))
    if held_by == "pause":
        engine.client.pause("interactive")
    else:
        engine.client.shut(begun_may_end=False)
    if held_by == "yield":
        engine.client.take_back(["a"])
        engine.client.handle(step(finished("a", FinishReason.ABORT)))
        await until(lambda: not engine.client.live)
        assert running.is_over is False
        list(running.read())
        with pytest.raises(NotReady, match="longest for class interactive"):
            await running.wait()
    else:
        waiting = engine.submit("b")
        with pytest.raises(NotReady, match="longest for class interactive"):
            await waiting.wait()


async def test_long_wait_says_what_it_was_for() -> None:
    engine = Engine(queue_timeout_s=0.0)
    engine.supervisor.state, engine.supervisor.ready = State.YIELDED, None
    engine.supervisor.away_reason = "a game needs the GPU"
    with pytest.raises(NotReady, match="a game needs the GPU"):
        await engine.submit("a").wait()


# ---- trials --------------------------------------------------------------------------------------------


async def test_nobody_is_blamed_whom_the_engine_that_died_never_had(engine: Engine, running: Stream) -> None:
    """It died while it loaded."""
    engine.supervisor.ready = None
    engine.client.recover("a fault", by_itself=True)
    assert engine.supervisor.has_unsent("a")
    engine.client.recover("another fault", by_itself=True)
    assert engine.supervisor.has_unsent("a")
    assert engine.records == []
