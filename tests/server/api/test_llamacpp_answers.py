"""The objects of llama-server's own API, from pieces of text: how an answer ended, what a stream's last event says."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from homeai.errors import NotReady
from homeai.messages import AddRequest
from homeai.request import FinishReason, SampledToken, SamplingParams, TokenLogprob
from homeai.server.api.llamacpp_answers import NativeAnswer
from homeai.server.ask import Ask
from homeai.server.generation import Generation
from homeai.server.parts import Content
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result

PIECES = {1: b"Hi", 2: b" you", 3: b"\xf0\x9f"}
TEXT = SimpleNamespace(
    name="model",
    piece=PIECES.get,
    token_text=lambda i: PIECES[i].decode("utf-8", "replace"),
    detokenize=lambda ids: "".join(PIECES[i].decode() for i in ids),
)


def reply(num_choices: int = 1, *, stopped_by: str | None = None, is_cut: bool = False) -> Reply:
    generations = [
        Generation(
            AddRequest(
                request_id=f"r-{i}",
                prompt_token_ids=[1, 2, 2],
                sampling=SamplingParams(max_tokens=8, logprobs=None),
                source="default",
                fairness_class="interactive",
                arrival_at=0.0,
            ),
            "/completion",
            num_output_tokens=2,
        )
        for i in range(num_choices)
    ]
    return cast(
        Reply,
        SimpleNamespace(
            text=TEXT, generations=generations, stopped_by=lambda _choice: stopped_by, is_cut=lambda _choice: is_cut
        ),
    )


def ask(logprobs: int | None = None) -> Ask:
    return Ask(sampling=SamplingParams(logprobs=logprobs), stop=["END"])


def piece(text: str, *token_ids: int, choice: int = 0, reason: FinishReason | None = None) -> Piece:
    tokens = [SampledToken(i, -0.5, (TokenLogprob(i, -0.5),)) for i in token_ids]
    return Piece(choice, [Content(text)] if text else [], tokens, reason)


def events(answer: NativeAnswer, *pieces: Piece) -> list[Any]:
    blocks = answer.pieces(pieces).decode().split("\n\n")
    assert blocks.pop() == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def result(text: str, *token_ids: int, reason: FinishReason = FinishReason.STOP) -> Result:
    whole = Result()
    whole.add(piece(text, *token_ids, reason=reason))
    return whole


def test_text_and_end_are_two_events() -> None:
    text, end = events(NativeAnswer(reply(), ask()), piece("Hi\n", 1, reason=FinishReason.LENGTH))
    assert (text["content"], text["stop"], text["tokens"], text["tokens_predicted"]) == ("Hi\n", False, [1], 1)
    assert (end["content"], end["stop"], end["has_new_line"]) == ("", True, True)
    assert NativeAnswer(reply(), ask()).end() == b""


@pytest.mark.parametrize(
    ("stopped_by", "is_cut", "reason", "told"),
    [
        (None, False, FinishReason.LENGTH, ("limit", "")),
        (None, False, FinishReason.STOP, ("eos", "")),
        ("END", False, FinishReason.STOP, ("word", "END")),
        (None, True, FinishReason.STOP, ("limit", "")),
        ("", True, FinishReason.STOP, ("limit", "")),
    ],
)
def test_how_it_ended(stopped_by: str | None, is_cut: bool, reason: FinishReason, told: tuple[str, str]) -> None:
    answer: Any = NativeAnswer(reply(stopped_by=stopped_by, is_cut=is_cut), ask()).whole(
        [result("Hi", 1, reason=reason)]
    )
    assert (answer["stop_type"], answer["stopping_word"]) == told


def test_a_whole_answer_has_what_was_asked_for_in_it() -> None:
    answer: Any = NativeAnswer(reply(), ask()).whole([result("Hi you", 1, 2)])
    assert (answer["content"], answer["tokens"]) == ("Hi you", [])
    assert (answer["tokens_evaluated"], answer["tokens_predicted"], answer["tokens_cached"]) == (3, 2, 5)
    assert answer["prompt"] == "Hi you you"
    assert answer["generation_settings"]["stop"] == ["END"]
    assert "completion_probabilities" not in answer


def test_several_are_a_list() -> None:
    answers: Any = NativeAnswer(reply(2), ask(), returns_tokens=True).whole([result("Hi", 1), result(" you", 2)])
    assert [(answer["index"], answer["tokens"]) for answer in answers] == [(0, [1]), (1, [2])]


def test_half_a_character_has_its_bytes() -> None:
    answer: Any = NativeAnswer(reply(), ask(logprobs=1)).whole([result("", 3)])
    (entry,) = answer["completion_probabilities"]
    assert (entry["id"], entry["bytes"], entry["token"]) == (3, [0xF0, 0x9F], "\ufffd")
    assert entry["top_logprobs"] == [{"id": 3, "token": "\ufffd", "bytes": [0xF0, 0x9F], "logprob": -0.5}]


def test_fields_are_of_the_last_event_only() -> None:
    answer = NativeAnswer(reply(), ask(), fields=["timings/predicted_n", "stop"])
    text, end = events(answer, piece("Hi", 1), piece("", reason=FinishReason.STOP))
    assert text["content"] == "Hi"
    assert end == {"timings/predicted_n": 2, "stop": True}


def test_progress_is_told_until_the_first_token_and_then_whole() -> None:
    answer = NativeAnswer(reply(), ask(), wants_progress=True)
    assert json.loads((answer.ping or b"").removeprefix(b"data: "))["prompt_progress"]["processed"] == 0
    first, text, _end = events(answer, piece("Hi", 1, reason=FinishReason.STOP))
    assert first["prompt_progress"]["processed"] == first["prompt_progress"]["total"] == 3
    assert text["content"] == "Hi"
    assert answer.ping == b":\n\n"


def test_an_error_in_a_stream_is_llama_servers() -> None:
    error = NotReady("gone", retry_after_s=1)
    assert json.loads(NativeAnswer(reply(), ask()).error(error).removeprefix(b"data: ")) == {
        "error": {"code": 503, "message": "gone", "type": "unavailable_error"}
    }
