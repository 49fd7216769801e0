"""A client's answer: tokens to text, stop strings, log-probabilities with their text, ends and errors."""

from __future__ import annotations

import pytest

from homeai.config import ResidencyConfig
from homeai.errors import EngineDied, NotReady
from homeai.messages import AbortRequests
from homeai.request import FinishReason
from homeai.server.admission import Door
from homeai.server.client import EngineClient
from homeai.server.generation import Record
from homeai.server.outputs import OutputText
from homeai.server.reply import MAX_SHOWN_CHARS, Piece, Reply
from homeai.server.supervisor import State, Supervisor
from tests.server.fakes import QUEUE_TIMEOUT_S, READY, FakeChild, finished, make_add, output, step

PIECES = [b"one ", b"two ", b"three ", "🙂".encode()[:2], "🙂".encode()[2:], b""]
ONE, TWO, THREE, HALF, OTHER_HALF, END = range(len(PIECES))


class FakeText:
    """A vocabulary of six tokens."""

    def is_end(self, token_id: int) -> bool:
        return token_id == END


class Conversation:
    """A reply of `n` choices above an engine that does what a test says."""

    def __init__(self, *stop: str, n: int = 1) -> None:
        self.child = FakeChild()
        supervisor = Supervisor(lambda: self.child, ResidencyConfig())
        supervisor.spawn()
        supervisor.state, supervisor.ready = State.RESIDENT, READY
        self.client = EngineClient(supervisor, Door({"interactive": 8}, 8), {"interactive": QUEUE_TIMEOUT_S})
        self.records: list[Record] = []
        self.client.on_finished = self.records.append
        self.ids = [f"choice{i}" for i in range(n)]
        stream = self.client.submit([make_add(request_id) for request_id in self.ids], api="/test")
        self.client.handle(step(admitted=tuple(self.ids)))
        self._num_tokens = dict.fromkeys(self.ids, 0)
        self.reply = Reply(self.client, stream, FakeText(), lambda: OutputText(lambda i: PIECES[i], stop))

    def draw(self, *token_ids: int, choice: int = 0) -> None:
        """One step each."""
        request_id = self.ids[choice]
        for token_id in token_ids:
            self.client.handle(step(output(request_id, self._num_tokens[request_id], token_id)))
            self._num_tokens[request_id] += 1

    def end(self, reason: FinishReason = FinishReason.STOP, choice: int = 0) -> None:
        self.client.handle(step(finished(self.ids[choice], reason)))

    def read(self) -> list[Piece]:
        return list(self.reply.read())

    @property
    def aborts(self) -> list[AbortRequests]:
        return [message for message in self.child.heard if isinstance(message, AbortRequests)]


def texts(pieces: list[Piece]) -> list[str]:
    return [piece.text for piece in pieces]


def test_text_comes_as_it_is_drawn_and_the_last_piece_says_why_it_ends() -> None:
    talk = Conversation()
    talk.draw(ONE)
    assert texts(talk.read()) == ["one "]
    talk.draw(TWO, END)
    talk.end()
    assert [(piece.text, piece.finish_reason) for piece in talk.read()] == [("two ", None), ("", FinishReason.STOP)]
    assert talk.reply.is_over


def test_half_a_character_waits_for_the_other() -> None:
    talk = Conversation()
    talk.draw(HALF)
    assert talk.read() == []
    talk.draw(OTHER_HALF)
    assert texts(talk.read()) == ["🙂"]


def test_tokens_travel_with_their_text() -> None:
    talk = Conversation("two three")
    talk.draw(ONE, TWO)
    first = talk.read()
    assert [(piece.text, [t.token_id for t in piece.tokens]) for piece in first] == [("one ", [ONE])]
    talk.end(FinishReason.LENGTH)
    (last,) = talk.read()
    assert (last.text, [t.token_id for t in last.tokens]) == ("two ", [TWO])
    assert last.finish_reason is FinishReason.LENGTH


def test_stop_string_ends_the_choice_and_asks_the_engine_to() -> None:
    talk = Conversation("two")
    talk.draw(ONE, TWO, THREE)  # the engine is one step ahead
    assert [(piece.text, piece.finish_reason) for piece in talk.read()] == [("one ", None)]
    assert talk.aborts == [AbortRequests(["choice0"], FinishReason.STOP)]
    assert talk.reply.generations[0].num_output_tokens == 2
    talk.end()
    assert [(piece.text, piece.finish_reason) for piece in talk.read()] == [("", FinishReason.STOP)]
    assert talk.reply.is_over


def test_stop_string_of_one_choice_leaves_the_others_alone() -> None:
    talk = Conversation("two", n=2)
    talk.draw(TWO, choice=1)
    talk.draw(ONE, choice=0)
    assert [(p.choice, p.text, p.finish_reason) for p in talk.read()] == [(0, "one ", None)]
    talk.end(FinishReason.LENGTH, choice=1)
    assert [(p.choice, p.text, p.finish_reason) for p in talk.read()] == [(1, "", FinishReason.STOP)]
    assert not talk.reply.is_over
    talk.draw(THREE, choice=0)
    talk.end(choice=0)
    assert [(p.choice, p.text, p.finish_reason) for p in talk.read()] == [
        (0, "three ", None),
        (0, "", FinishReason.STOP),
    ]
    assert talk.reply.is_over


def test_stop_string_in_the_last_token_is_a_stop_and_not_the_length() -> None:
    talk = Conversation("two")
    talk.draw(TWO)
    talk.end(FinishReason.LENGTH)
    assert [piece.finish_reason for piece in talk.read()] == [FinishReason.STOP]
    assert talk.aborts == []
    assert talk.reply.is_over


def test_stop_string_in_the_step_of_the_end_cuts_usage_and_books_alike() -> None:
    talk = Conversation("two")
    talk.draw(ONE, TWO, THREE)
    talk.end(FinishReason.LENGTH)  # before anybody has read the text
    assert talk.records == []
    talk.read()
    (record,) = talk.records
    assert record.generation is talk.reply.generations[0]
    assert (record.finish_reason, record.generation.num_output_tokens) == (FinishReason.STOP, 2)


def test_answer_that_nobody_reads_is_booked_when_its_client_leaves() -> None:
    talk = Conversation("two")
    talk.draw(ONE, TWO)
    talk.end(FinishReason.LENGTH)
    talk.reply.close()
    talk.reply.close()
    assert [record.finish_reason for record in talk.records] == [FinishReason.LENGTH]


def test_stopped_choice_knows_what_was_cached_when_it_ends() -> None:
    talk = Conversation("two")
    talk.draw(TWO)
    talk.read()
    talk.client.handle(step(finished("choice0", FinishReason.STOP, num_cached_tokens=2)))
    assert [piece.finish_reason for piece in talk.read()] == [FinishReason.STOP]
    assert talk.reply.generations[0].num_cached_tokens == 2


async def test_request_that_the_server_ends_is_an_error_to_its_client_after_what_had_come() -> None:
    talk = Conversation()
    talk.draw(ONE)
    talk.client.abort_all()
    talk.end(FinishReason.ABORT)
    assert await talk.reply.wait()
    assert texts(talk.read()) == ["one "]
    with pytest.raises(NotReady):
        await talk.reply.wait()


async def test_lost_engine_is_raised_after_what_had_come() -> None:
    talk = Conversation()
    talk.draw(ONE)
    talk.client.fail_all(EngineDied("gone"))
    assert await talk.reply.wait()
    assert texts(talk.read()) == ["one "]
    assert not talk.reply.is_over
    with pytest.raises(EngineDied):
        await talk.reply.wait()


def test_close_ends_what_is_live_and_is_harmless_afterwards() -> None:
    talk = Conversation(n=2)
    talk.end(choice=0)
    talk.reply.close()
    assert talk.aborts == [AbortRequests(["choice1"])]
    talk.end(FinishReason.ABORT, choice=1)
    talk.reply.close()
    assert len(talk.aborts) == 1


# ---- what the status page may show ---------------------------------------------------------------------


def test_text_is_shown_only_where_the_settings_say_so() -> None:
    hidden, shown = Conversation(), Conversation()
    (generation,) = shown.reply.generations
    generation.shown_text = ""
    for talk in (hidden, shown):
        talk.draw(ONE, TWO)
        talk.read()
    assert [talk.reply.generations[0].shown_text for talk in (hidden, shown)] == [None, "one two "]


def test_only_the_end_of_a_long_text_is_shown() -> None:
    talk = Conversation()
    (generation,) = talk.reply.generations
    generation.shown_text = ""
    for _ in range(600):
        talk.draw(ONE)
        talk.read()
    assert len(generation.shown_text) == MAX_SHOWN_CHARS
