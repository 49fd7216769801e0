"""What the bodies mean: limits, seeds, prompts, tools; and that a million mistakes cost no more than one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import parse_body
from homeai.server.api.openai_bodies import ChatBody, CompletionBody
from homeai.server.text import Text

TEXT = cast(Text, SimpleNamespace(max_model_len=100, num_vocab_tokens=1000))
TOOL = {"type": "function", "function": {"name": "f"}}


def completion(**fields: object) -> CompletionBody:
    return parse_body(json.dumps({"prompt": "a"} | fields).encode(), CompletionBody)


def chat(**fields: object) -> ChatBody:
    return parse_body(json.dumps({"messages": [{"role": "user", "content": "a"}]} | fields).encode(), ChatBody)


def max_tokens(body: CompletionBody | ChatBody, default: int | None = 16) -> int:
    return body.sampling(TEXT, 90, default_max_tokens=default).max_tokens


def test_defaults_are_those_of_the_sampler() -> None:
    assert completion().sampling(TEXT, 50, default_max_tokens=16) == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({}, 10),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 3.0}, 3),
        ({"max_tokens": 10**30}, 10),
        ({"max_tokens": -1}, 10),
        ({"n_predict": 3}, 3),
        ({"n_predict": 3, "max_tokens": 4}, 4),
    ],
)
def test_limit_of_tokens_is_what_was_asked_for_or_what_fits(fields: dict[str, object], num_tokens: int) -> None:
    assert max_tokens(completion(**fields)) == num_tokens


def test_default_limit_may_be_the_rest_of_the_context() -> None:
    assert max_tokens(chat(), default=None) == 10


def test_newer_name_of_the_limit_wins() -> None:
    assert max_tokens(chat(max_tokens=5, max_completion_tokens=2)) == 2
    assert max_tokens(chat(max_tokens=5)) == 5


def test_least_number_of_tokens_is_at_most_the_limit() -> None:
    assert completion(min_tokens=50, max_tokens=5).sampling(TEXT, 90, default_max_tokens=16).min_tokens == 5


@pytest.mark.parametrize(("seed", "fixed"), [(None, None), (-1, None), (0, 0), (42, 42), (-2, 2**64 - 2), (7.0, 7)])
def test_seed_is_drawn_where_none_is_given(seed: object, fixed: int | None) -> None:
    assert completion(seed=seed).fixed_seed == fixed


def test_penalty_has_two_names() -> None:
    for name in ("repeat_penalty", "repetition_penalty"):
        assert completion(**{name: 1.5}).sampling(TEXT, 1, default_max_tokens=1).repeat_penalty == 1.5


@pytest.mark.parametrize("stop", ["x", ["x"]])
def test_stop_may_be_one_string(stop: object) -> None:
    assert completion(stop=stop).stop == ["x"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
def test_prompt_is_texts_or_ids(prompt: object, prompts: list[object]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


def test_bias_outside_of_the_vocabulary_is_refused() -> None:
    for token_id in ("-1", "1000", "9" * 30):
        with pytest.raises(InvalidRequest, match=f"token {token_id}; the vocabulary is 0 to 999"):
            completion(logit_bias={token_id: 1}).sampling(TEXT, 1, default_max_tokens=1)


def test_logprobs_count_the_alternatives() -> None:
    assert completion().num_logprobs is None
    assert completion(logprobs=0).num_logprobs == 0
    assert chat(top_logprobs=3).num_logprobs is None
    assert chat(logprobs=True, top_logprobs=3).num_logprobs == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": TOOL}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_tools_are_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields).chat_messages()
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "auto"}]
)
def test_tools_that_are_not_to_be_used_are_no_obstacle(fields: dict[str, object]) -> None:
    assert [message.content for message in chat(**fields).chat_messages()] == ["a"]


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, {"modalities": ["audio"]}, {"grammar": "x"}]
)
def test_other_answers_than_text_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Unsupported) as caught:
        chat(**fields)
    assert [caught.value.param] == list(fields)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"prompt": [-1] * 100_000}, "prompt[0]"),
        ({"prompt": [5] * 50_000 + ["x"] * 50_000}, "prompt[50000]"),
        ({"prompt": ["x"] * 100_000}, "100000"),
        ({"prompt": [[5]] * 100_000}, "100000"),
        ({"stop": [5] * 100_000}, "stop[0]"),
        ({"logit_bias": {str(i): 1000 for i in range(100_000)}}, "100000"),
        ({"messages": [5] * 100_000}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [5] * 100_000}]}, "messages[0].content[0]"),
    ],
    ids=["ids", "mixed", "texts", "id-lists", "stops", "biases", "messages", "parts"],
)
def test_first_of_many_mistakes_is_the_only_one_looked_at(
    fields: dict[str, object], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a body of a few megabytes holds the event loop for a minute."""
    model = ChatBody if "messages" in fields else CompletionBody
    with pytest.raises(InvalidRequest) as caught:
        parse_body(json.dumps({"prompt": "a"} | fields).encode(), model)
    assert where in caught.value.message
    cause = caught.value.__context__
    assert cause is None or getattr(cause, "error_count", lambda: 1)() == 1
