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
from homeai.server.client import Generation
from homeai.server.parts import Content
from homeai.server.reply import Piece, Reply

PIECES = {1: b"Hi", 2: b" you", 3: b"\xf0\x9f", 4: b"\xab\xa8"}
TEXT = SimpleNamespace(name="model", piece=PIECES.get, token_text=lambda i: PIECES[i].decode("utf-8", "replace"))
REPLY = cast(Reply, SimpleNamespace(text=TEXT, generations=[]))


def token(token_id: int, *alternatives: int) -> SampledToken:
    return SampledToken(token_id, -0.5, tuple(TokenLogprob(other, -float(other)) for other in alternatives))


def piece(text: str, *tokens: SampledToken, choice: int = 0, reason: FinishReason | None = None) -> Piece:
    return Piece(choice, [Content(text)] if text else [], list(tokens), reason)


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


def chat(*pieces: Piece, wants_logprobs: bool = False) -> list[Any]:
    answer = ChatAnswer(REPLY, "abc", wants_logprobs=wants_logprobs)
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


def test_late_error_is_an_event_of_the_same_shape() -> None:
    event = ChatAnswer(REPLY, "abc").error(PromptTooLong(9, 5))
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 9, 5)
