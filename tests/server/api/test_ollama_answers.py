"""Lines of Ollama's API, from pieces: what each of them has, calls whole, durations in nanoseconds."""

from __future__ import annotations

import datetime
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from homeai.errors import EngineDied, PromptTooLong
from homeai.messages import AddRequest
from homeai.request import FinishReason, SampledToken, SamplingParams, TokenLogprob
from homeai.server.api.ollama_answers import Answer, ChatAnswer, TextAnswer, counts, empty_chat, empty_text, timestamp
from homeai.server.generation import Generation
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result

PIECES = {1: b"Hi", 2: b" you", 3: b"\xf0\x9f"}
TEXT = SimpleNamespace(name="model", piece=PIECES.get, token_text=lambda i: PIECES[i].decode("utf-8", "replace"))
CALL: list[Part] = [CallStart(0, "c1", "light"), CallArguments(0, '{"on":'), CallArguments(0, " true}"), CallEnd(0)]
LIGHT = {"id": "c1", "function": {"index": 0, "name": "light", "arguments": {"on": True}}}


def generation(num_prompt: int = 3, num_output: int = 2, **instants: float) -> Generation:
    add = AddRequest(
        request_id="r",
        prompt_token_ids=[5] * num_prompt,
        sampling=SamplingParams(),
        source="default",
        fairness_class="interactive",
        arrival_at=10.0,
    )
    return Generation(add, "/api/chat", num_output_tokens=num_output, **instants)


REPLY = cast(Reply, SimpleNamespace(text=TEXT, generations=[generation()]))


def token(token_id: int, *alternatives: int) -> SampledToken:
    return SampledToken(token_id, -0.5, tuple(TokenLogprob(other, -float(other)) for other in alternatives))


def piece(*parts: Part, tokens: tuple[SampledToken, ...] = (), reason: FinishReason | None = None) -> Piece:
    return Piece(0, list(parts), list(tokens), reason)


def lines(data: bytes) -> list[Any]:
    """Every line is JSON, and there is no blank one."""
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def stream(answer: Answer, *pieces: Piece) -> list[Any]:
    return lines(answer.pieces(pieces)) + lines(answer.end())


def whole(answer: Answer, *pieces: Piece) -> Any:
    result = Result()
    for each in pieces:
        result.add(each)
    return answer.whole([result])


# ---- lines ---------------------------------------------------------------------------------------------


def test_every_line_has_what_strict_clients_need() -> None:
    first, last = stream(ChatAnswer(REPLY, "m"), piece(Content("Hi")), piece(reason=FinishReason.STOP))
    for line in (first, last):
        assert line["model"] == "m"
        assert datetime.datetime.fromisoformat(line["created_at"]).tzinfo is not None
        assert line["created_at"].endswith("Z")
        assert line["message"]["role"] == "assistant"
        assert isinstance(line["message"]["content"], str)
    assert (first["done"], last["done"], last["done_reason"]) == (False, True, "stop")
    assert "done_reason" not in first


def test_text_that_comes_with_the_end_has_a_line_of_its_own() -> None:
    text, end = stream(ChatAnswer(REPLY, "m"), piece(Content("Hi"), reason=FinishReason.LENGTH))
    assert (text["message"]["content"], text["done"]) == ("Hi", False)
    assert (end["message"]["content"], end["done_reason"]) == ("", "length")


def test_generated_text_stands_in_response() -> None:
    text, end = stream(TextAnswer(REPLY, "m"), piece(Reasoning("Hm."), Content("Hi")), piece(reason=FinishReason.STOP))
    assert (text["response"], text["thinking"], end["response"]) == ("Hi", "Hm.", "")
    assert "message" not in text


def test_thoughts_stand_beside_the_text() -> None:
    pieces = piece(Reasoning("Hm.")), piece(Content("Hi")), piece(reason=FinishReason.STOP)
    thought, text, _end = stream(ChatAnswer(REPLY, "m"), *pieces)
    assert thought["message"] == {"role": "assistant", "content": "", "thinking": "Hm."}
    assert "thinking" not in text["message"]
    assert whole(ChatAnswer(REPLY, "m"), *pieces)["message"] == {
        "role": "assistant",
        "content": "Hi",
        "thinking": "Hm.",
    }


def test_end_without_any_piece_is_still_a_whole_line() -> None:
    (end,) = stream(ChatAnswer(REPLY, "m"))
    assert (end["message"], end["done"]) == ({"role": "assistant", "content": ""}, True)


# ---- calls ---------------------------------------------------------------------------------------------


def test_g12_call_is_sent_once_it_is_whole_with_an_object_for_arguments() -> None:
    first, *others = [piece(part) for part in CALL]
    answer = ChatAnswer(REPLY, "m")
    assert answer.pieces([first, *others[:-1]]) == b""
    call, end = stream(answer, others[-1], piece(reason=FinishReason.STOP))
    assert call["message"] == {"role": "assistant", "content": "", "tool_calls": [LIGHT]}
    assert (call["done"], end["done"], end["done_reason"]) == (False, True, "stop")
    assert "tool_calls" not in end["message"]


def test_g13_second_call_has_an_index_of_its_own() -> None:
    second: list[Part] = [CallStart(1, "c2", "fan"), CallArguments(1, "{}"), CallEnd(1)]
    pieces = piece(*CALL), piece(*second), piece(reason=FinishReason.STOP)
    calls = [line["message"]["tool_calls"] for line in stream(ChatAnswer(REPLY, "m"), *pieces)[:-1]]
    fan = {"id": "c2", "function": {"index": 1, "name": "fan", "arguments": {}}}
    assert calls == [[LIGHT], [fan]]
    assert whole(ChatAnswer(REPLY, "m"), *pieces)["message"]["tool_calls"] == [LIGHT, fan]


def test_call_that_is_cut_off_is_never_sent() -> None:
    pieces = piece(*CALL[:-1]), piece(reason=FinishReason.LENGTH)
    (end,) = stream(ChatAnswer(REPLY, "m"), *pieces)
    assert (end["message"], end["done_reason"]) == ({"role": "assistant", "content": ""}, "length")
    assert "tool_calls" not in whole(ChatAnswer(REPLY, "m"), *pieces)["message"]


# ---- counts --------------------------------------------------------------------------------------------


def test_durations_are_whole_nanoseconds_of_queue_prompt_and_answer() -> None:
    times = {"started_at": 10.5, "first_token_at": 11.0, "last_token_at": 12.9}
    assert counts(generation(num_prompt=7, num_output=4, **times), ended_at=13.0) == {
        "total_duration": 3_000_000_000,
        "load_duration": 500_000_000,
        "prompt_eval_count": 7,
        "prompt_eval_duration": 500_000_000,
        "eval_count": 4,
        "eval_duration": 2_000_000_000,
    }


def test_no_duration_is_zero_because_clients_divide_by_it() -> None:
    durations = counts(generation(num_output=0), ended_at=10.0)
    assert {name: value for name, value in durations.items() if name.endswith("_duration")} == dict.fromkeys(
        ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"), 1
    )


def test_whole_answer_has_the_counts_too() -> None:
    answer = whole(TextAnswer(REPLY, "m"), piece(Content("Hi")), piece(reason=FinishReason.STOP))
    assert (answer["response"], answer["done"], answer["eval_count"], answer["prompt_eval_count"]) == ("Hi", True, 2, 3)
    assert all(type(value) is int for name, value in answer.items() if name.endswith(("_count", "_duration")))


# ---- log-probabilities ---------------------------------------------------------------------------------


def test_log_probabilities_go_with_the_text() -> None:
    answer = TextAnswer(REPLY, "m", wants_logprobs=True)
    first, end = stream(answer, piece(Content("Hi"), tokens=(token(1, 1, 3),)), piece(reason=FinishReason.STOP))
    assert first["logprobs"] == [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [
                {"token": "Hi", "logprob": -1.0, "bytes": [72, 105]},
                {"token": "\ufffd", "logprob": -3.0, "bytes": [0xF0, 0x9F]},
            ],
        }
    ]
    assert "logprobs" not in end


def test_tokens_of_a_call_are_told_with_the_call() -> None:
    answer = ChatAnswer(REPLY, "m", wants_logprobs=True)
    pieces = piece(*CALL[:2], tokens=(token(1),)), piece(*CALL[2:], tokens=(token(2),))
    call, _end = stream(answer, *pieces)
    assert [entry["token"] for entry in call["logprobs"]] == ["Hi", " you"]


def test_no_log_probabilities_unless_asked_for() -> None:
    pieces = piece(Content("Hi"), tokens=(token(1),)), piece(reason=FinishReason.STOP)
    assert all("logprobs" not in line for line in stream(ChatAnswer(REPLY, "m"), *pieces))
    assert "logprobs" not in whole(ChatAnswer(REPLY, "m"), *pieces)


# ---- the rest ------------------------------------------------------------------------------------------


def test_error_in_a_stream_is_a_line() -> None:
    answer = ChatAnswer(REPLY, "m")
    assert lines(answer.error(EngineDied("the engine ended"))) == [{"error": "the engine ended"}]
    (error,) = lines(answer.error(PromptTooLong(9, 8)))
    assert error["error"].startswith("prompt is too long: 9 tokens > 8 maximum")


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_answer_without_a_question_says_what_was_done(reason: str) -> None:
    chat, text = empty_chat("m", reason), empty_text("m", reason)
    assert (chat["message"], chat["done"], chat["done_reason"]) == ({"role": "assistant", "content": ""}, True, reason)
    assert (text["response"], text["done"], text["done_reason"]) == ("", True, reason)


def test_instants_are_in_utc() -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    assert timestamp(noon) == "2026-01-02T11:00:00.000000Z"
