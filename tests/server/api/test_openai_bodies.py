"""What the bodies mean: limits, seeds, prompts, tools; and that a million mistakes cost no more than one."""

from __future__ import annotations

import json

import pytest

from homeai.errors import InvalidRequest, Unsupported
from homeai.request import SamplingParams
from homeai.server.api.body import parse_body
from homeai.server.api.openai_bodies import ChatBody, CompletionBody

TOOL = {"type": "function", "function": {"name": "f"}}


def completion(**fields: object) -> CompletionBody:
    return parse_body(json.dumps({"prompt": "a"} | fields).encode(), CompletionBody)


def chat(**fields: object) -> ChatBody:
    return parse_body(json.dumps({"messages": [{"role": "user", "content": "a"}]} | fields).encode(), ChatBody)


def test_defaults_are_those_of_the_sampler() -> None:
    assert completion().ask().sampling == SamplingParams()


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({}, 16),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 3}, 3),
        ({"max_tokens": 3.0}, 3),
        ({"max_tokens": 10**30}, 10**30),
        ({"max_tokens": -1}, None),
        ({"n_predict": 3}, 3),
        ({"n_predict": 3, "max_tokens": 4}, 4),
    ],
)
def test_limit_of_tokens_is_what_was_asked_for(fields: dict[str, object], num_tokens: int | None) -> None:
    assert completion(**fields).ask().max_tokens == num_tokens


def test_chat_goes_on_to_its_natural_end() -> None:
    assert chat().ask().max_tokens is None


def test_newer_name_of_the_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=2).ask().max_tokens == 2
    assert chat(max_tokens=5).ask().max_tokens == 5


@pytest.mark.parametrize(("seed", "fixed"), [(None, None), (-1, None), (0, 0), (42, 42), (-2, 2**64 - 2), (7.0, 7)])
def test_seed_is_drawn_where_none_is_given(seed: object, fixed: int | None) -> None:
    assert completion(seed=seed).fixed_seed == fixed


def test_penalty_has_two_names() -> None:
    for name in ("repeat_penalty", "repetition_penalty"):
        assert completion(**{name: 1.5}).ask().sampling.repeat_penalty == 1.5


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
        chat(**fields).chat()
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "auto"}]
)
def test_tools_that_are_not_to_be_used_are_no_obstacle(fields: dict[str, object]) -> None:
    assert [message.content for message in chat(**fields).chat().messages] == ["a"]


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
