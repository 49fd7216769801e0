"""The objects of OpenAI's API, from pieces of text: where the role goes, where the end, what counts as usage."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from homeai.errors import PromptTooLong
from homeai.messages import AddRequest
from homeai.request import FinishReason, SampledToken, SamplingParams, TokenLogprob
from homeai.server.api.openai_answers import ChatAnswer, CompletionAnswer, timings, usage
from homeai.server.generation import Generation
from homeai.server.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result

PIECES = {1: b"Hi", 2: b" you", 3: b"\xf0\x9f", 4: b"\xab\xa8"}
TEXT = SimpleNamespace(name="model", piece=PIECES.get, token_text=lambda i: PIECES[i].decode("utf-8", "replace"))
REPLY = cast(Reply, SimpleNamespace(text=TEXT, generations=[]))


def token(token_id: int, *alternatives: int) -> SampledToken:
    return SampledToken(token_id, -0.5, tuple(TokenLogprob(other, -float(other)) for other in alternatives))


def piece(text: str, *tokens: SampledToken, choice: int = 0, reason: FinishReason | None = None) -> Piece:
    return Piece(choice, [Content(text)] if text else [], list(tokens), reason)


def parts(*parts: Part, reason: FinishReason | None = None, tokens: tuple[SampledToken, ...] = ()) -> Piece:
    return Piece(0, list(parts), list(tokens), reason)


def generation(num_prompt: int = 3, num_output: int = 2, **instants: float) -> Generation:
    add = AddRequest(
        request_id="r",
        prompt_token_ids=[5] * num_prompt,
        sampling=SamplingParams(),
        source="default",
        fairness_class="interactive",
        arrival_at=0.0,
    )
    return Generation(add, "/v1/completions", num_output_tokens=num_output, **instants)


def chat(*pieces: Piece, **options: Any) -> list[Any]:
    answer = ChatAnswer(REPLY, "abc", **options)
    return [choice for piece in pieces for choice in answer.stream_choices(piece)]


def completion(*pieces: Piece, wants_logprobs: bool = False) -> list[Any]:
    answer = CompletionAnswer(REPLY, "abc", wants_logprobs=wants_logprobs)
    return [choice for piece in pieces for choice in answer.stream_choices(piece)]


def test_role_is_part_of_the_first_delta_of_each_choice() -> None:
    choices = chat(piece("Hi"), piece("Yo", choice=1), piece(" you"))
    assert [(choice["index"], choice["delta"]) for choice in choices] == [
        (0, {"role": "assistant", "content": "Hi"}),
        (1, {"role": "assistant", "content": "Yo"}),
        (0, {"content": " you"}),
    ]


def test_end_of_a_chat_comes_alone_and_after_its_text() -> None:
    first, last, end = chat(piece("Hi"), piece(" you", reason=FinishReason.LENGTH))
    assert (first["finish_reason"], last["delta"], last["finish_reason"]) == (None, {"content": " you"}, None)
    assert (end["delta"], end["finish_reason"]) == ({}, "length")


def test_empty_answer_still_has_a_role() -> None:
    first, end = chat(piece("", reason=FinishReason.STOP))
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert (end["delta"], end["finish_reason"]) == ({}, "stop")


def test_end_of_a_completion_comes_alone_and_after_its_text() -> None:
    text, end = completion(piece("Hi", reason=FinishReason.STOP))
    assert (text["text"], text["finish_reason"]) == ("Hi", None)
    assert (end["text"], end["finish_reason"]) == ("", "stop")


def test_log_probabilities_travel_with_their_text() -> None:
    first, _ = chat(piece("Hi", token(1, 1, 2)), piece(" you"), wants_logprobs=True)
    (entry,) = first["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("Hi", -0.5, [72, 105])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("Hi", -1.0), (" you", -2.0)]


def test_bytes_of_half_a_character_are_told() -> None:
    (choice,) = chat(piece("🫨", token(3), token(4)), wants_logprobs=True)
    parts = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
    assert b"".join(parts).decode() == "🫨"


def test_offsets_go_on_from_piece_to_piece_for_each_choice() -> None:
    choices = completion(
        piece("Hi", token(1)), piece("Hi", token(1), choice=1), piece(" youHi", token(2), token(1)), wants_logprobs=True
    )
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0], [0], [2, 6]]


def test_completion_names_its_alternatives() -> None:
    (choice,) = completion(piece("Hi", token(1, 1, 2)), wants_logprobs=True)
    assert choice["logprobs"]["top_logprobs"] == [{"Hi": -1.0, " you": -2.0}]
    assert choice["logprobs"]["token_logprobs"] == [-0.5]


@pytest.mark.parametrize("choices", [chat, completion])
def test_log_probabilities_are_null_where_nobody_asked(choices: Any) -> None:
    assert [choice["logprobs"] for choice in choices(piece("Hi", token(1), reason=FinishReason.STOP))] == [None, None]


def test_chunks_of_one_answer_have_one_id() -> None:
    answer = ChatAnswer(REPLY, "abc")
    one, other = (json.loads(answer.pieces([piece("Hi")]).removeprefix(b"data: ")) for _ in range(2))
    assert (one["id"], one["created"]) == (other["id"], other["created"])
    assert (one["object"], one["model"], one["id"]) == ("chat.completion.chunk", "model", "chatcmpl-abc")


def test_prompt_is_counted_once_for_all_its_choices() -> None:
    generations = [generation(3, 1), generation(3, 2), generation(7, 3), generation(7, 4)]
    counted = usage(generations, num_choices_per_prompt=2)
    assert (counted["prompt_tokens"], counted["completion_tokens"], counted["total_tokens"]) == (10, 10, 20)


def test_timings_are_in_milliseconds() -> None:
    told = timings(generation(10, 3, started_at=1.0, first_token_at=1.5, last_token_at=1.7))
    assert (told["prompt_n"], told["predicted_n"]) == (10, 3)
    assert told["prompt_ms"] == pytest.approx(500)
    assert told["prompt_per_second"] == pytest.approx(20)
    assert told["predicted_per_token_ms"] == pytest.approx(100)
    assert told["predicted_per_second"] == pytest.approx(10)


def test_cached_part_of_a_prompt_counts_once_however_many_choices_it_has() -> None:
    generations = [generation(num_cached_tokens=count) for count in (2, 3, 1, 3)]
    counted = usage(generations, num_choices_per_prompt=2)
    assert counted["prompt_tokens_details"] == {"cached_tokens": 3}


def test_timings_tell_the_cached_part_from_the_computed() -> None:
    told = timings(generation(10, 3, num_cached_tokens=6, started_at=1.0, first_token_at=1.5, last_token_at=1.7))
    assert (told["cache_n"], told["prompt_n"], told["prompt_per_second"]) == (6, 4, 8.0)


def test_timings_of_an_answer_without_tokens_are_zero() -> None:
    told = timings(generation(10, 0))
    assert (told["predicted_ms"], told["predicted_per_second"], told["prompt_ms"]) == (0, 0, 0)


# ---- calls ---------------------------------------------------------------------------------------------

CALL = (CallStart(0, "call_1", "f"), CallArguments(0, '{"a":'), CallArguments(0, "1}"), CallEnd(0))
SECOND = (CallStart(1, "call_2", "g"), CallEnd(1))


def deltas(choices: list[Any]) -> list[Any]:
    return [choice["delta"] for choice in choices]


def whole(*pieces: Piece, **options: Any) -> Any:
    result = Result()
    for piece in pieces:
        result.add(piece)
    return ChatAnswer(REPLY, "abc", **options).choice(0, result)


def test_call_is_its_head_and_then_its_arguments() -> None:
    *told, end = chat(parts(*CALL), parts(reason=FinishReason.STOP))
    assert deltas(told) == [
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    ]
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


def test_two_calls_have_two_indices_and_never_share_a_chunk_g13() -> None:
    *told, end = chat(parts(*CALL, *SECOND, reason=FinishReason.STOP))
    calls = [delta["tool_calls"] for delta in deltas(told) if "tool_calls" in delta]
    assert all(len(call) == 1 for call in calls)
    assert [call[0]["index"] for call in calls] == [0, 0, 0, 1, 1]
    assert end["finish_reason"] == "tool_calls"


def test_call_without_arguments_gets_an_empty_object() -> None:
    told = deltas(chat(parts(*SECOND, reason=FinishReason.STOP)))
    assert told[-2] == {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}


def test_text_before_a_call_has_the_role() -> None:
    told = deltas(chat(parts(Content("Hm.")), parts(*CALL)))
    assert told[0] == {"role": "assistant", "content": "Hm."}
    assert [list(delta) for delta in told[1:]] == [["tool_calls"]] * 3


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_call_that_was_cut_is_none(reason: FinishReason) -> None:
    half = (parts(*CALL[:2]), parts(reason=reason))
    assert chat(*half)[-1]["finish_reason"] == reason.value
    assert whole(*half)["finish_reason"] == reason.value
    assert whole(*half)["message"] == {"role": "assistant", "content": ""}


def test_whole_calls_of_an_answer_that_was_cut_are_told() -> None:
    cut = (parts(*CALL, SECOND[0]), parts(reason=FinishReason.LENGTH))
    assert whole(*cut)["finish_reason"] == "length"
    assert [call["id"] for call in whole(*cut)["message"]["tool_calls"]] == ["call_1"]


def test_message_with_calls_has_their_arguments_as_text() -> None:
    choice = whole(parts(*CALL, *SECOND, reason=FinishReason.STOP))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_client_that_knows_functions_only_is_told_of_one() -> None:
    piece = parts(*CALL, *SECOND, reason=FinishReason.STOP)
    *told, end = chat(piece, is_legacy=True)
    assert deltas(told) == [
        {"role": "assistant", "content": None},
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a":'}},
        {"function_call": {"arguments": "1}"}},
    ]
    assert end["finish_reason"] == "function_call"
    choice = whole(piece, is_legacy=True)
    assert choice["finish_reason"] == "function_call"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": '{"a":1}'},
    }


def test_log_probabilities_of_a_part_without_a_chunk_wait_for_the_next() -> None:
    told = chat(
        parts(*CALL[:3], tokens=(token(1),)),
        parts(CALL[3], tokens=(token(2),)),
        parts(reason=FinishReason.STOP, tokens=(token(1),)),
        wants_logprobs=True,
    )
    counts = [len(choice["logprobs"]["content"]) if choice["logprobs"] else 0 for choice in told]
    assert counts == [1, 0, 0, 0, 2]


# ---- thoughts ------------------------------------------------------------------------------------------

THOUGHTS = (parts(Reasoning("Hm")), parts(Reasoning(" so"), Content("Hi")), parts(reason=FinishReason.STOP))


def test_thoughts_have_a_field_of_their_own_under_both_names() -> None:
    *told, end = chat(*THOUGHTS)
    assert deltas(told) == [
        {"role": "assistant", "reasoning_content": "Hm", "reasoning": "Hm"},
        {"reasoning_content": " so", "reasoning": " so"},
        {"content": "Hi"},
    ]
    assert end["finish_reason"] == "stop"
    message = whole(*THOUGHTS)["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("Hi", "Hm so", "Hm so")


@pytest.mark.parametrize("cut", [2, 3])
def test_thoughts_may_stay_in_the_text(cut: int) -> None:
    pieces = (*THOUGHTS[: cut - 1], THOUGHTS[-1])
    told = deltas(chat(*pieces, thoughts="inline"))
    text = "<think>Hm</think>" if cut == 2 else "<think>Hm so</think>Hi"
    assert "".join(delta.get("content", "") for delta in told) == text
    assert told[0]["role"] == "assistant"
    assert whole(*pieces, thoughts="inline")["message"] == {"role": "assistant", "content": text}


def test_thoughts_may_be_left_out() -> None:
    assert deltas(chat(*THOUGHTS, thoughts="hidden")) == [{"role": "assistant", "content": "Hi"}, {}]
    assert whole(*THOUGHTS, thoughts="hidden")["message"] == {"role": "assistant", "content": "Hi"}


# ---- what clients may want to know beside ----------------------------------------------------------------


def chunks(*pieces: Piece, **options: Any) -> list[Any]:
    reply = cast(Reply, SimpleNamespace(text=TEXT, generations=[generation(10, 2, started_at=0.0)]))
    data = ChatAnswer(reply, "abc", **options).pieces(pieces)
    return [json.loads(block.removeprefix(b"data: ")) for block in data.split(b"\n\n")[:-1]]


def test_timings_come_with_the_end_or_with_every_chunk() -> None:
    pieces = piece("Hi"), piece("", reason=FinishReason.STOP)
    assert ["timings" in chunk for chunk in chunks(*pieces)] == [False, True]
    assert ["timings" in chunk for chunk in chunks(*pieces, timings_per_chunk=True)] == [True, True]


def test_usage_so_far_comes_with_every_chunk_when_asked_for() -> None:
    (chunk,) = chunks(piece("Hi"), usage_per_chunk=True)
    assert (chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]) == (10, 2)
    assert "usage" not in chunks(piece("Hi"))[0]


def test_progress_is_told_until_the_first_token() -> None:
    reply = cast(Reply, SimpleNamespace(text=TEXT, generations=[generation(10, 2)]))
    answer = ChatAnswer(reply, "abc", wants_progress=True)
    assert answer.ping is not None
    early = json.loads(answer.ping.removeprefix(b"data: "))
    assert early["prompt_progress"] == {"total": 10, "cache": 0, "processed": 0, "time_ms": 0}
    assert early["choices"][0]["delta"] == {"role": "assistant", "content": None}
    first, text = answer.pieces([piece("Hi")]).split(b"\n\n")[:-1]
    assert json.loads(first.removeprefix(b"data: "))["prompt_progress"]["processed"] == 10
    assert b"prompt_progress" not in text
    assert answer.ping == b":\n\n"


def test_whole_answer_may_be_cut_to_some_fields() -> None:
    reply = cast(Reply, SimpleNamespace(text=TEXT, generations=[generation(10, 2)]))
    answer = ChatAnswer(reply, "abc", fields=["usage/total_tokens", "object", "nope/nope", "object/nope", ""])
    assert answer.whole([Result("Hi")]) == {"usage/total_tokens": 12, "object": "chat.completion"}


def test_late_error_is_an_event_of_the_same_shape() -> None:
    event = ChatAnswer(REPLY, "abc").error(PromptTooLong(9, 5))
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 9, 5)
