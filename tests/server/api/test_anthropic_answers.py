"""Events and messages of Anthropic's API, held against the types of its own SDK. Cases C7, H12, H13, H15, H16."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from homeai.errors import EngineDied, TooManyRequests
from homeai.request import FinishReason
from homeai.server.api.anthropic_answers import SIGNATURE, MessageAnswer
from homeai.server.parts import Content, Reasoning
from homeai.server.reply import Piece
from tests.server.api.replies import FakeReply, call, events, piece, result

Event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def make_answer(reply: FakeReply, *stop_sequences: str, max_tokens: int = 5) -> MessageAnswer:
    return MessageAnswer(reply.reply, "abc", stop_sequences=stop_sequences, max_tokens=max_tokens)


def streamed(*pieces: Piece, reply: FakeReply | None = None, stop: tuple[str, ...] = ()) -> list[Any]:
    answer = make_answer(reply or FakeReply(), *stop)
    data = events(b"".join([*(answer.pieces([each]) for each in pieces), answer.end()]))
    for each in data:
        Event.validate_python(each)
    return data


def whole(*pieces: Piece, reply: FakeReply | None = None, stop: tuple[str, ...] = ()) -> Any:
    message = make_answer(reply or FakeReply(), *stop).whole([result(*pieces)])
    Message.model_validate(message)
    return message


def gathered(data: list[Any]) -> Message:
    """What the SDK makes of a stream."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for each in data:
        message = accumulate_event(event=Event.validate_python(each), current_snapshot=message, json_bufs=buffers)
    assert isinstance(message, Message)
    return message


def test_text_is_one_block_between_start_and_stop() -> None:
    data = streamed(piece(Content("Hi")), piece(Content(" you")), piece(reason=STOP))
    assert [each["type"] for each in data] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, block = data[:2]
    assert (start["message"]["content"], start["message"]["stop_reason"], start["message"]["id"]) == (
        [],
        None,
        "msg_abc",
    )
    assert start["message"]["stop_sequence"] is None
    assert block["content_block"] == {"type": "text", "text": ""}
    assert data[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_blocks_follow_one_another_and_are_counted() -> None:
    data = streamed(
        piece(Reasoning("Hm"), Content("So")), piece(*call(0, "f", '{"a":1}'), *call(1, "g", "{}")), piece(reason=STOP)
    )
    places = [(each["type"], each["index"]) for each in data if "index" in each]
    assert [index for kind, index in places if kind == "content_block_start"] == [0, 1, 2, 3]
    assert [index for kind, index in places if kind == "content_block_stop"] == [0, 1, 2, 3]
    assert [index for _, index in places] == sorted(index for _, index in places)


def test_thinking_is_signed_before_it_ends() -> None:
    data = streamed(piece(Reasoning("Hm")), piece(Content("So"), reason=STOP))
    thinking = [each for each in data if each.get("index") == 0]
    assert [each["delta"]["type"] for each in thinking if "delta" in each] == ["thinking_delta", "signature_delta"]
    assert thinking[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert thinking[-2]["delta"]["signature"] == SIGNATURE


def test_call_starts_with_an_empty_input_h13() -> None:
    data = streamed(piece(*call(0, "f", '{"a":1}')), piece(reason=STOP))
    (start,) = [each for each in data if each["type"] == "content_block_start"]
    assert start["content_block"] == {"type": "tool_use", "id": "call_0", "name": "f", "input": {}}
    parts = [each["delta"]["partial_json"] for each in data if "partial_json" in each.get("delta", ())]
    assert "".join(parts) == '{"a":1}'
    assert data[-2]["delta"]["stop_reason"] == "tool_use"


def test_half_a_call_is_never_closed() -> None:
    pieces = [piece(Content("So"), *call(0, "f", '{"a":', is_whole=False)), piece(reason=LENGTH)]
    data = streamed(*pieces)
    assert [each["index"] for each in data if each["type"] == "content_block_stop"] == [0]
    assert data[-2]["delta"]["stop_reason"] == "max_tokens"
    assert [block["type"] for block in whole(*pieces)["content"]] == ["text"]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(Content("Hi")), piece(Content(" you"), reason=STOP)],
        [piece(Reasoning("Hm"), Content("So"), *call(0, "f", '{"a":[1,{"b":"c"}]}'), *call(1, "g", "{}"), reason=STOP)],
        [piece(*call(0, "f", "{}")), piece(reason=STOP)],
        [piece(reason=STOP)],
        [piece(Content("")), piece(reason=LENGTH)],
    ],
    ids=["text", "everything", "call", "nothing", "nothing in time"],
)
def test_sdk_gathers_from_a_stream_what_the_whole_message_says(pieces: list[Piece]) -> None:
    message = gathered(streamed(*pieces))
    expected = Message.model_validate(whole(*pieces))
    assert message.to_dict(exclude_none=True) == expected.to_dict(exclude_none=True)


def test_empty_answer_has_an_empty_text() -> None:
    assert whole(piece(reason=STOP))["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("reason", "num_output", "stopped", "told"),
    [
        (STOP, 3, None, ("end_turn", None)),
        (STOP, 3, "\nUser:", ("end_turn", None)),  # ours, never theirs
        (STOP, 3, "END", ("stop_sequence", "END")),
        (LENGTH, 5, None, ("max_tokens", None)),  # C7
        (LENGTH, 4, None, ("model_context_window_exceeded", None)),
    ],
)
def test_reason_of_the_end_is_told(
    reason: FinishReason, num_output: int, stopped: str | None, told: tuple[str, str | None]
) -> None:
    reply = FakeReply(num_output=num_output, stopped=stopped)
    message = whole(piece(Content("Hi"), reason=reason), reply=reply, stop=("END", "STOP"))
    delta = streamed(piece(Content("Hi"), reason=reason), reply=reply, stop=("END", "STOP"))[-2]["delta"]
    assert (message["stop_reason"], message["stop_sequence"]) == told
    assert (delta["stop_reason"], delta["stop_sequence"]) == told


def test_cached_tokens_are_apart_from_those_that_were_computed_h16() -> None:
    reply = FakeReply(num_prompt=10, num_cached=7, num_output=2)
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2,
    }
    pieces = [piece(Content("Hi"), reason=STOP)]
    assert whole(*pieces, reply=reply)["usage"] == usage
    data = streamed(*pieces, reply=reply)
    assert data[0]["message"]["usage"] == usage | {"output_tokens": 0}
    assert data[-2]["usage"] == usage


def test_late_error_is_an_event_of_the_family() -> None:
    answer = make_answer(FakeReply())
    for error, kind in [(EngineDied("gone"), "overloaded_error"), (TooManyRequests("no"), "overloaded_error")]:
        (data,) = events(answer.error(error))
        assert (data["type"], data["error"]["type"], data["request_id"]) == ("error", kind, "abc")


def test_silence_is_filled_with_pings() -> None:
    assert events(make_answer(FakeReply()).ping or b"") == [{"type": "ping"}]
