"""The response object and its events, held against the types of OpenAI's own SDK: fields, places, ends."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from homeai.errors import EngineDied, PromptTooLong, QueueTimeout, RequestError
from homeai.request import FinishReason, SampledToken, TokenLogprob
from homeai.server.api.body import parse_body
from homeai.server.api.responses_answers import ResponseAnswer
from homeai.server.api.responses_bodies import ResponsesBody
from homeai.server.parts import Content, Reasoning
from homeai.server.reply import Piece
from tests.server.api.replies import FakeReply, call, events, piece, result

Event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TEXT = SimpleNamespace(name="model", piece=lambda i: b"x%d" % i, token_text=lambda i: f"x{i}")
TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "namespace", "name": "house", "description": "", "tools": [{"type": "function", "name": "g"}]},
    {"type": "web_search"},
]

# what a response has, by the OpenResponses specification
FIELDS = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "user", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}


def make_answer(reply: FakeReply | None = None, **fields: object) -> ResponseAnswer:
    body = parse_body(json.dumps({"input": "a", "tools": TOOLS} | fields).encode(), ResponsesBody)
    reply = reply or FakeReply(text=TEXT)
    return ResponseAnswer(reply.reply, "abc", body, body.toolbox([]))


def checked(stream: bytes) -> list[Any]:
    """Every event fits the SDK's type, and they are numbered from 0."""
    data = events(stream)
    for each in data:
        Event.validate_python(each)
        if "response" in each:
            check_response(each["response"])
    assert [each["sequence_number"] for each in data] == [*range(len(data))]
    return data


def check_response(response: Any) -> None:
    Response.model_validate(response)
    assert response.keys() == FIELDS


def streamed(*pieces: Piece, reply: FakeReply | None = None, **fields: object) -> list[Any]:
    answer = make_answer(reply, **fields)
    return checked(b"".join([*(answer.pieces([each]) for each in pieces), answer.end()]))


def whole(*pieces: Piece, reply: FakeReply | None = None, **fields: object) -> Any:
    response = make_answer(reply, **fields).whole([result(*pieces)])
    check_response(response)
    return response


def names(data: list[Any]) -> list[str]:
    return [each["type"].removeprefix("response.") for each in data]


EVERYTHING = [
    piece(Reasoning("Hm")),
    piece(Reasoning("."), Content("So")),
    piece(*call(0, "f", '{"a":[1,2]}'), *call(1, "house__g", "{}"), *call(2, "patch", '{"input":"*** \\"x\\""}')),
    piece(reason=STOP),
]


def test_text_grows_in_one_part_of_one_message() -> None:
    data = streamed(piece(Content("Hi")), piece(Content(" you")), piece(reason=STOP))
    assert names(data) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [each["delta"] for each in data if "delta" in each] == ["Hi", " you"]
    assert data[6]["text"] == "Hi you"
    assert data[0]["response"]["status"] == data[1]["response"]["status"] == "in_progress"
    (item,) = data[-1]["response"]["output"]
    assert item == data[-2]["item"]
    assert (item["content"][0]["text"], item["status"]) == ("Hi you", "completed")


def test_places_are_those_of_the_item_and_ids_stay_the_same() -> None:
    data = streamed(*EVERYTHING)
    added = [each for each in data if each["type"] == "response.output_item.added"]
    assert [each["output_index"] for each in added] == [0, 1, 2, 3, 4]
    ids = [each["item"]["id"] for each in added]
    assert len({*ids}) == 5
    for each in data:
        if "item_id" in each:
            assert each["item_id"] == ids[each["output_index"]]
        if "item" in each:
            assert each["item"]["id"] == ids[each["output_index"]]
    assert {each["response"]["id"] for each in data if "response" in each} == {"resp_abc"}


def test_reasoning_is_told_as_it_is() -> None:
    data = streamed(piece(Reasoning("Hm")), piece(Content("So")), piece(reason=STOP))
    assert names(data)[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    item = data[7]["item"]
    assert (item["content"], item["summary"]) == ([{"type": "reasoning_text", "text": "Hm"}], [])


@pytest.mark.parametrize("reasoning", [{"summary": "auto"}, {"generate_summary": "concise"}])
def test_reasoning_is_the_summary_for_those_who_asked_for_one(reasoning: dict[str, str]) -> None:
    data = streamed(piece(Reasoning("Hm")), piece(reason=STOP), reasoning=reasoning)
    assert names(data)[2:-1] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert data[-2]["item"]["summary"] == [{"type": "summary_text", "text": "Hm"}]


def test_call_of_a_function_is_done_with_its_arguments() -> None:
    data = streamed(piece(*call(0, "f", '{"a":1}')), piece(reason=STOP))
    assert names(data)[2:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert data[2]["item"]["arguments"] == ""
    assert data[-3]["arguments"] == data[-2]["item"]["arguments"] == '{"a":1}'
    assert (data[-2]["item"]["name"], data[-2]["item"]["call_id"]) == ("f", "call_0")
    assert "namespace" not in data[-2]["item"]


def test_call_of_a_custom_tool_is_its_text() -> None:
    data = streamed(piece(*call(0, "patch", '{"input":"*** \\"x\\""}')), piece(reason=STOP))
    assert names(data)[2:] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    item = data[-2]["item"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", '*** "x"')


def test_call_in_a_namespace_has_its_two_names() -> None:
    (item,) = whole(piece(*call(0, "house__g", "{}")), piece(reason=STOP))["output"]
    assert (item["namespace"], item["name"]) == ("house", "g")


@pytest.mark.parametrize("name", ["f", "patch"])
def test_half_a_call_is_never_done(name: str) -> None:
    pieces = [piece(Content("So"), *call(0, name, '{"a":', is_whole=False)), piece(reason=LENGTH)]
    data = streamed(*pieces)
    assert [each["item"]["type"] for each in data if each["type"] == "response.output_item.done"] == ["message"]
    assert not [each for each in names(data) if each in ("function_call_arguments.done", "custom_tool_call_input.done")]
    assert data[-1]["type"] == "response.incomplete"
    for response in (data[-1]["response"], whole(*pieces)):
        assert [item["type"] for item in response["output"]] == ["message"]


def test_half_a_call_makes_a_response_incomplete_however_it_ends() -> None:
    data = streamed(piece(*call(0, "f", '{"a":', is_whole=False)), piece(reason=STOP))
    assert data[-1]["type"] == "response.incomplete"
    assert data[-1]["response"]["incomplete_details"] is None


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [(STOP, "completed", None), (LENGTH, "incomplete", {"reason": "max_output_tokens"})],
)
def test_end_is_told(reason: FinishReason, status: str, details: object) -> None:
    """C7"""
    pieces = [piece(Content("Hi")), piece(reason=reason)]
    data = streamed(*pieces)
    assert data[-1]["type"] == f"response.{status}"
    for response in (data[-1]["response"], whole(*pieces)):
        assert (response["status"], response["incomplete_details"]) == (status, details)
        assert [item["status"] for item in response["output"]] == [status]
        assert (response["completed_at"] is not None) == (status == "completed")


def test_answer_of_nothing_is_an_empty_message() -> None:
    data = streamed(piece(reason=STOP))
    assert names(data)[2:5] == ["output_item.added", "content_part.added", "output_text.done"]
    (item,) = whole(piece(reason=STOP))["output"]
    assert item["content"][0]["text"] == ""


@pytest.mark.parametrize(
    "pieces",
    [
        EVERYTHING,
        [piece(Content("Hi")), piece(reason=LENGTH)],
        [piece(reason=STOP)],
        [piece(*call(0, "f", "{}"), reason=STOP)],
    ],
    ids=["everything", "cut", "nothing", "call"],
)
@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "auto"}}])
def test_last_event_has_the_whole_response(pieces: list[Piece], fields: dict[str, object]) -> None:
    last = streamed(*pieces, **fields)[-1]["response"]
    response = whole(*pieces, **fields)
    timeless = {"created_at": 0, "completed_at": 0}
    assert last | timeless == response | timeless


def test_sdk_gathers_the_response_from_its_events() -> None:
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for each in streamed(*EVERYTHING):
        state.handle_event(Event.validate_python(each))
    assert state._completed_response is not None
    assert [item.type for item in state._completed_response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "custom_tool_call",
    ]


def test_usage_has_its_details_h16() -> None:
    reply = FakeReply(num_prompt=10, num_cached=7, num_output=4, text=TEXT)
    pieces = [piece(Reasoning("Hm"), tokens=(SampledToken(1), SampledToken(2))), piece(Content("So"), reason=STOP)]
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    }
    data = streamed(*pieces, reply=reply)
    assert data[-1]["response"]["usage"] == usage
    assert data[0]["response"]["usage"] is None


def test_log_probabilities_come_where_they_were_asked_for() -> None:
    token = SampledToken(1, -0.5, (TokenLogprob(1, -0.5), TokenLogprob(2, -1.5)))
    pieces = [piece(Content("Hi"), tokens=(token,)), piece(reason=STOP)]
    entry = {"token": "x1", "logprob": -0.5, "bytes": [120, 49]}
    other = {"token": "x2", "logprob": -1.5, "bytes": [120, 50]}
    expected = [entry | {"top_logprobs": [entry, other]}]
    data = streamed(*pieces, include=["message.output_text.logprobs"], top_logprobs=2)
    assert [each["logprobs"] for each in data if "logprobs" in each] == [expected, expected]
    assert data[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected
    assert [each["logprobs"] for each in streamed(*pieces) if "logprobs" in each] == [[], []]


def test_response_repeats_what_was_asked_for() -> None:
    fields = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "max_output_tokens": 99,
        "temperature": 0.5,
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "user": "anna",
        "prompt_cache_key": "k",
    }
    response = whole(piece(reason=STOP), **fields)
    assert {name: response[name] for name in fields} == fields | {"reasoning": {"effort": "low", "summary": None}}
    assert response["tools"][0] == {"description": None, "strict": True} | TOOLS[0]
    assert response["tools"][1:] == TOOLS[1:]
    assert (response["store"], response["background"], response["previous_response_id"]) == (False, False, None)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (EngineDied("gone"), "server_error", "gone"),
        (QueueTimeout("waited", retry_after_s=7.0), "rate_limit_exceeded", "waited; try again in 7s"),
    ],
)
@pytest.mark.parametrize("has_begun", [True, False])
def test_late_error_fails_the_response(error: RequestError, code: str, words: str, has_begun: bool) -> None:
    answer = make_answer()
    begin = answer.pieces([piece(Content("Hi"))]) if has_begun else b""
    data = checked(begin + answer.error(error))
    assert names(data)[:2] == ["created", "in_progress"]
    assert data[-1]["type"] == "response.failed"
    assert (data[-1]["response"]["status"], data[-1]["response"]["error"]) == (
        "failed",
        {"code": code, "message": words},
    )


def test_silence_says_again_that_it_is_under_way() -> None:
    """SDKs insist on `created` first; Codex gives up on a stream of comments."""
    answer = make_answer()
    before = (answer.ping or b"") + (answer.ping or b"")
    begun = answer.pieces([piece(Content("Hi"))]) + (answer.ping or b"")
    data = checked(before + begun + answer.pieces([piece(reason=STOP)]))
    assert names(data)[:4] == ["created", "in_progress", "in_progress", "output_item.added"]
    assert names(data).count("created") == 1
    assert names(data)[6] == "in_progress"
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for each in data:
        state.handle_event(Event.validate_python(each))
    assert state._completed_response is not None
    assert state._completed_response.output_text == "Hi"


def test_prompt_that_is_too_long_is_told_in_the_words_that_codex_reads() -> None:
    data = events(make_answer().error(PromptTooLong(9, 5)))
    assert data[-1]["response"]["error"]["code"] == "context_length_exceeded"
