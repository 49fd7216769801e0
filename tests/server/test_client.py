"""Requests go down, each one's tokens come back to whoever waits for them, and every request ends once."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.config import ResidencyConfig
from homeai.errors import EngineDied, InvalidRequest, NotReady, QueueTimeout, RequestError, TooManyRequests
from homeai.messages import AbortRequests, AddRequest, Down, Heartbeat, Progress, RequestFailed
from homeai.request import FinishReason, WaitReason
from homeai.server.admission import Door
from homeai.server.client import MAX_BUFFERED_TOKENS, EngineClient
from homeai.server.generation import Record
from homeai.server.stream import Stream, TokenEvent
from homeai.server.supervisor import State, Supervisor
from tests.server.fakes import QUEUE_TIMEOUT_S, READY, STATS, FakeChild, finished, make_add, output, step, until


class Engine:
    """A client above a resident engine that does only what a test says; records how requests ended."""

    def __init__(
        self,
        *,
        max_waiting: int = 8,
        max_num_seqs: int = 2,
        queue_timeout_s: float = QUEUE_TIMEOUT_S,
        is_resident: bool = True,
    ) -> None:
        self.child = FakeChild()
        self.supervisor = Supervisor(lambda: self.child, ResidencyConfig())
        self.supervisor.spawn()
        if is_resident:
            self.supervisor.state, self.supervisor.ready = State.RESIDENT, READY
        self.door, self.num_places = Door({"interactive": max_waiting}, max_num_seqs), max_waiting + max_num_seqs
        self.client = EngineClient(self.supervisor, self.door, {"interactive": queue_timeout_s})
        self.records: list[Record] = []
        self.client.on_finished = self.records.append

    def submit(self, *request_ids: str) -> Stream:
        return self.client.submit([make_add(request_id) for request_id in request_ids], api="/test")

    @property
    def heard(self) -> list[Down]:
        return self.child.heard

    @property
    def aborts(self) -> list[AbortRequests]:
        return [message for message in self.heard if isinstance(message, AbortRequests)]

    @property
    def is_empty(self) -> bool:
        """Nothing is live, and every place is free."""
        self.door.check("interactive", self.num_places, 0.0)
        return not self.client.live


@pytest.fixture
def engine() -> Engine:
    return Engine()


def tokens(events: list[TokenEvent]) -> list[tuple[int, int]]:
    """(choice, token id) of each."""
    return [(event.choice, event.token.token_id) for event in events if event.token]


# ---- a stream ------------------------------------------------------------------------------------------


async def test_tokens_come_in_order_and_then_the_end(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.handle(step(output("a", 0, 10), output("a", 1, 11), admitted=("a",)))
    engine.client.handle(step(output("a", 2, 12), finished("a")))
    assert await stream.wait()
    events = list(stream.read())
    assert tokens(events) == [(0, 10), (0, 11), (0, 12)]
    assert events[-1].finish_reason is FinishReason.STOP
    assert stream.is_over


async def test_each_stream_gets_its_own_tokens(engine: Engine) -> None:
    first, second = engine.submit("a"), engine.submit("b", "c")
    engine.client.handle(step(output("c", 0, 30), output("a", 0, 10), output("b", 0, 20), admitted=("a", "b", "c")))
    assert tokens(list(first.read())) == [(0, 10)]
    assert tokens(list(second.read())) == [(1, 30), (0, 20)]


async def test_stream_is_over_when_all_its_generations_are(engine: Engine) -> None:
    stream = engine.submit("a", "b")
    engine.client.handle(step(finished("a"), admitted=("a", "b")))
    list(stream.read())
    assert not stream.is_over
    engine.client.handle(step(finished("b")))
    assert not stream.is_over  # there is something to read
    list(stream.read())
    assert stream.is_over


async def test_waiting_reader_is_woken(engine: Engine) -> None:
    stream = engine.submit("a")
    reading = asyncio.create_task(stream.wait())
    await asyncio.sleep(0)
    assert not reading.done()
    engine.client.handle(step(output("a", 0), admitted=("a",)))
    assert await reading


async def test_wait_may_run_out_and_be_taken_up_again(engine: Engine) -> None:
    stream = engine.submit("a")
    assert not await stream.wait(0)
    engine.client.handle(step(output("a", 0), admitted=("a",)))
    assert await stream.wait(0)


async def test_gap_in_the_tokens_is_a_broken_engine(engine: Engine) -> None:
    engine.submit("a")
    with pytest.raises(AssertionError, match="in order"):
        engine.client.handle(step(output("a", 1), admitted=("a",)))


async def test_heartbeat_is_no_news(engine: Engine) -> None:
    engine.client.handle(Heartbeat(1))
    assert engine.records == []


async def test_progress_and_the_last_step_are_kept_for_the_status(engine: Engine) -> None:
    stream = engine.submit("a")
    progress = Progress("a", "waiting", 3, 0, 0, WaitReason.KV_SPACE)
    engine.client.handle(step(progress=[progress]))
    assert stream.generations[0].progress == progress
    assert engine.client.last_step == STATS


async def test_times_in_the_batch_are_kept_without_those_in_which_it_was_parked(engine: Engine) -> None:
    (generation,) = engine.submit("a").generations
    assert (generation.ran, generation.ran_since) == ([], None)
    engine.client.handle(step(admitted=("a",)))
    assert generation.ran_since is not None
    engine.client.handle(step(progress=[Progress("a", "preempted", 3, 3, 0, WaitReason.SEQUENCE_SLOT)]))
    assert (len(generation.ran), generation.ran_since) == (1, None)
    assert generation.waited_for == WaitReason.SEQUENCE_SLOT
    engine.client.handle(msgspec.structs.replace(step(), resumed=["a"]))
    engine.client.handle(step(finished("a")))
    (first, second) = generation.ran
    assert first[0] <= first[1] <= second[0] <= second[1]


async def test_first_token_is_told_once(engine: Engine) -> None:
    told: list[tuple[str, float]] = []
    engine.client.on_first_token = lambda fairness_class, ttft_s: told.append((fairness_class, ttft_s))
    engine.submit("a")
    engine.client.handle(step(output("a", 0), output("a", 1), admitted=("a",)))
    assert [fairness_class for fairness_class, _ in told] == ["interactive"]


async def test_gaps_between_tokens_are_told_by_class(engine: Engine) -> None:
    gaps: list[str] = []
    engine.client.on_token_gap = lambda fairness_class, gap_s: gaps.append(fairness_class)
    engine.submit("a")
    engine.client.handle(step(output("a", 0), admitted=("a",)))
    assert gaps == []  # the first one ends no gap
    engine.client.handle(step(output("a", 1), output("a", 2)))
    assert gaps == ["interactive"] * 2


# ---- queueing ------------------------------------------------------------------------------------------


async def test_all_of_a_submission_are_queued_or_none() -> None:
    engine = Engine(max_waiting=1, max_num_seqs=1)
    with pytest.raises(TooManyRequests):
        engine.submit("a", "b", "c")
    assert engine.heard == []
    assert engine.is_empty
    engine.submit("a", "b")
    assert [message.request_id for message in engine.heard if isinstance(message, AddRequest)] == ["a", "b"]


async def test_nothing_is_queued_while_draining(engine: Engine) -> None:
    engine.supervisor.drain()
    with pytest.raises(NotReady):
        engine.submit("a")
    assert engine.heard == []
    assert engine.is_empty


async def test_waiting_too_long_is_a_queue_timeout(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.handle(step(finished("a", FinishReason.TIMEOUT)))
    with pytest.raises(QueueTimeout) as caught:
        await stream.wait()
    assert caught.value.retry_after_s is not None
    assert "class interactive" in caught.value.message
    assert engine.is_empty


# ---- ends ----------------------------------------------------------------------------------------------


async def test_abort_asks_for_the_end_of_all_that_is_live_of_a_stream(engine: Engine) -> None:
    stream = engine.submit("a", "b")
    engine.submit("c")
    engine.client.handle(step(finished("a"), admitted=("a",)))
    engine.client.abort(stream)
    assert engine.aborts == [AbortRequests(["b"])]


async def test_abort_is_harmless_when_repeated_or_late(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.abort(stream)
    engine.client.abort(stream)
    engine.client.handle(step(finished("a", FinishReason.ABORT)))
    engine.client.abort(stream)
    assert engine.aborts == [AbortRequests(["a"])] * 2  # the engine ignores the second
    assert [record.finish_reason for record in engine.records] == [FinishReason.ABORT]


async def test_stop_string_ends_one_generation_and_not_the_others(engine: Engine) -> None:
    stream = engine.submit("a", "b")
    engine.client.handle(step(output("a", 0), output("b", 0), output("a", 1), admitted=("a", "b")))
    engine.client.stop(stream, 0, num_output_tokens=1)
    assert engine.aborts == [AbortRequests(["a"], FinishReason.STOP)]
    engine.client.handle(step(output("a", 2), output("b", 1), finished("a", num_output_tokens=3)))
    engine.client.handle(step(finished("b", num_output_tokens=2)))
    assert tokens(list(stream.read())) == [(0, 7), (1, 7), (0, 7), (1, 7)]  # nothing of "a" after the stop
    assert stream.is_over
    usage = [(record.finish_reason, record.generation.num_output_tokens) for record in engine.records]
    assert usage == [(FinishReason.STOP, 1), (FinishReason.STOP, 2)]


async def test_stop_string_is_a_finish_whatever_the_engine_says_then(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.handle(step(output("a", 0), admitted=("a",)))
    engine.client.stop(stream, 0, num_output_tokens=1)
    engine.client.fail_all(EngineDied("gone"))
    list(stream.read())
    assert stream.is_over
    assert (engine.records[0].finish_reason, engine.records[0].error) == (FinishReason.STOP, None)


async def test_stop_that_comes_after_the_end_cuts_the_counts(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.handle(step(output("a", 0), output("a", 1), finished("a", FinishReason.LENGTH), admitted=("a",)))
    assert engine.records == []  # its reader may still find a stop string in what it has not read
    engine.client.stop(stream, 0, num_output_tokens=1)
    list(stream.read())
    assert stream.is_over
    assert engine.aborts == []
    (record,) = engine.records
    assert (record.finish_reason, record.generation.num_output_tokens) == (FinishReason.STOP, 1)


async def test_client_learns_how_much_of_its_prompt_was_cached(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.handle(step(finished("a", num_cached_tokens=2), admitted=("a",)))
    assert stream.generations[0].num_cached_tokens == 2


async def test_refused_request_fails_alone(engine: Engine) -> None:
    first, second = engine.submit("a"), engine.submit("b")
    engine.client.handle(RequestFailed("a", "too odd"))
    with pytest.raises(RequestError, match="too odd"):
        await first.wait()
    engine.client.handle(step(finished("b"), admitted=("b",)))
    assert await second.wait()


async def test_what_only_the_engine_can_refuse_is_the_clients_mistake(engine: Engine) -> None:
    stream = engine.submit("a")
    engine.client.handle(RequestFailed("a", "lexer error: too complex", is_invalid=True))
    with pytest.raises(InvalidRequest, match="too complex"):
        await stream.wait()


async def test_what_came_before_an_error_is_read_first_and_the_error_is_not_lost(engine: Engine) -> None:
    """Else half an answer would pass for a whole one."""
    stream = engine.submit("a")
    engine.client.handle(step(output("a", 0), admitted=("a",)))
    engine.client.fail_all(EngineDied("gone"))
    assert await stream.wait()
    assert tokens(list(stream.read())) == [(0, 7)]
    assert not stream.is_over
    with pytest.raises(EngineDied):
        await stream.wait()


async def test_first_error_of_a_stream_counts(engine: Engine) -> None:
    stream = engine.submit("a", "b")
    engine.client.handle(RequestFailed("a", "first"))
    engine.client.handle(RequestFailed("b", "second"))
    with pytest.raises(RequestError, match="first"):
        await stream.wait()


async def test_lost_engine_fails_every_live_request_once(engine: Engine) -> None:
    streams = [engine.submit("a"), engine.submit("b", "c"), engine.submit("d")]
    engine.client.handle(step(finished("d"), admitted=("a", "d")))
    for _ in range(2):
        engine.client.fail_all(EngineDied("gone"))
    assert Counter(record.generation.add.request_id for record in engine.records) == Counter("abcd")
    assert engine.is_empty
    for stream in streams[:2]:
        with pytest.raises(EngineDied):
            await stream.wait()


async def test_engine_that_dies_or_stops_is_lost(engine: Engine) -> None:
    """The wiring: the supervisor tells the client."""
    engine.supervisor.start()
    stream = engine.submit("a")
    await asyncio.sleep(0)
    await engine.supervisor.stop()
    with pytest.raises(NotReady):
        await stream.wait()
    assert engine.supervisor.state is State.STOPPED
    assert engine.is_empty


async def test_reader_that_does_not_read_is_dropped_and_nobody_else(engine: Engine) -> None:
    engine.submit("slow")
    reading = engine.submit("reading")
    for index in range(MAX_BUFFERED_TOKENS + 1):
        news = [output("slow", index), output("reading", index)]
        engine.client.handle(step(*news, admitted=() if index else ("slow", "reading")))
        list(reading.read())
    assert engine.aborts == [AbortRequests(["slow"])]


async def test_idle_returns_when_the_last_request_has_ended(engine: Engine) -> None:
    await engine.client.idle()
    engine.submit("a", "b")
    idle = asyncio.create_task(engine.client.idle())
    for request_id in "ab":
        await asyncio.sleep(0)
        assert not idle.done()
        engine.client.handle(step(finished(request_id)))
    await until(idle.done)


async def test_abort_all_asks_for_the_end_of_everything(engine: Engine) -> None:
    engine.client.abort_all()
    assert engine.aborts == []
    engine.submit("a")
    engine.submit("b")
    engine.client.abort_all()
    assert engine.aborts == [AbortRequests(["a", "b"])]


# ---- whatever happens ----------------------------------------------------------------------------------

EVENTS = ["submit", "submit two", "admit", "token", "finish", "time out", "refuse", "abort", "stop", "lose", "read"]
Script = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 99)), max_size=60)


class _Play:
    """Random events that keep to what an engine does: admit once, tokens while running, one end."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.streams: list[Stream] = []
        self.num_tokens: dict[str, int] = {}  # of the live ones, in the engine
        self.running: set[str] = set()
        self.num_submitted = 0

    def play(self, event: str, pick: int) -> None:
        live = list(self.num_tokens)
        request_id = live[pick % len(live)] if live else None
        stream = self.streams[pick % len(self.streams)] if self.streams else None
        if event.startswith("submit"):
            self._submit(2 if event == "submit two" else 1)
        elif event == "lose":
            self.engine.client.fail_all(EngineDied("gone"))
            self.num_tokens.clear()
            self.running.clear()
        elif stream is not None and event in ("abort", "stop", "read"):
            self._reader(event, stream)
        elif request_id is not None:
            self._engine(event, request_id)

    def _submit(self, count: int) -> None:
        ids = [f"r{self.num_submitted + i}" for i in range(count)]
        try:
            self.streams.append(self.engine.submit(*ids))
        except TooManyRequests:
            return
        self.num_submitted += count
        self.num_tokens |= dict.fromkeys(ids, 0)

    def _reader(self, event: str, stream: Stream) -> None:
        if event == "abort":
            self.engine.client.abort(stream)
        elif event == "stop" and not stream.generations[0].stopped:
            self.engine.client.stop(stream, 0, stream.generations[0].num_output_tokens)
        elif event == "read":
            list(stream.read())

    def _engine(self, event: str, request_id: str) -> None:
        handle, is_running = self.engine.client.handle, request_id in self.running
        if event == "admit" and not is_running:
            self.running.add(request_id)
            handle(step(admitted=(request_id,)))
        elif event == "token" and is_running:
            handle(step(output(request_id, self.num_tokens[request_id])))
            self.num_tokens[request_id] += 1
        elif event == "refuse" and not is_running:
            self._gone(request_id)
            handle(RequestFailed(request_id, "no"))
        elif (event == "finish" and is_running) or (event == "time out" and not is_running):
            self._gone(request_id)
            handle(step(finished(request_id, FinishReason.LENGTH if is_running else FinishReason.TIMEOUT)))

    def _gone(self, request_id: str) -> None:
        del self.num_tokens[request_id]
        self.running.discard(request_id)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(Script)
def test_every_request_is_written_down_once_and_every_stream_ends(script: list[tuple[str, int]]) -> None:
    play = _Play()
    for event, pick in script:
        play.play(event, pick)
    play.play("lose", 0)
    assert play.engine.is_empty
    for stream in play.streams:
        list(stream.read())
        assert stream.is_over or stream._error is not None
    ids = [record.generation.add.request_id for record in play.engine.records]
    assert sorted(ids) == sorted(f"r{i}" for i in range(play.num_submitted))


async def test_what_the_server_cuts_off_is_booked_as_its_doing_and_what_a_client_leaves_is_not(engine: Engine) -> None:
    engine.client.abort(engine.submit("left"))
    engine.client.handle(step(finished("left", FinishReason.ABORT)))
    engine.submit("cut")
    engine.client.abort_all()
    engine.client.handle(step(finished("cut", FinishReason.ABORT)))
    assert [type(record.error) for record in engine.records] == [type(None), NotReady]


# ---- while the engine loads ----------------------------------------------------------------------------


async def become_resident(engine: Engine) -> None:
    engine.supervisor.start()
    engine.child.say(READY)
    await until(lambda: engine.supervisor.ready)


async def test_request_that_its_client_leaves_during_the_load_ends_at_once_and_is_never_sent() -> None:
    engine = Engine(is_resident=False)
    left, staying = engine.submit("left"), engine.submit("staying")
    for _ in range(2):
        engine.client.abort(left)
    assert [(r.generation.add.request_id, r.finish_reason) for r in engine.records] == [("left", FinishReason.ABORT)]
    assert [generation.add.request_id for generation in engine.client.live] == ["staying"]
    await become_resident(engine)
    assert engine.heard == [staying.generations[0].add]
    await engine.supervisor.stop()


async def test_queue_timeout_runs_during_the_load_too() -> None:
    engine = Engine(is_resident=False, queue_timeout_s=0.0)
    stream = engine.submit("a", "b")
    with pytest.raises(QueueTimeout, match="class interactive"):
        await stream.wait()
    assert [record.finish_reason for record in engine.records] == [FinishReason.TIMEOUT] * 2
    assert engine.is_empty
    await become_resident(engine)
    assert engine.heard == []
    await engine.supervisor.stop()


async def test_queue_timeout_of_what_the_engine_knows_is_the_engine_s() -> None:
    engine = Engine(is_resident=False, queue_timeout_s=0.01)
    engine.submit("a")
    await become_resident(engine)
    await asyncio.sleep(0.02)  # the front end's own would have run out
    assert engine.records == []
    await engine.supervisor.stop()


async def test_server_that_stops_during_the_load_tells_who_waits_at_once() -> None:
    engine = Engine(is_resident=False)
    stream = engine.submit("a")
    engine.supervisor.drain()
    engine.client.abort_all()
    with pytest.raises(NotReady, match="before it was complete"):
        await stream.wait()
    assert engine.is_empty
