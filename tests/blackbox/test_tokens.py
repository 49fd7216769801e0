"""How many tokens an answer has, and which. Cases C1, C5, C6, C7."""

from __future__ import annotations

import pytest

from tests.blackbox.asking import BOTH_WAYS, GREEDY, ONE_TOKEN, ONE_WORD, ask, error_of, post
from tests.daemon import Daemon
from tests.streaming import exactly

HELLO = ONE_WORD["messages"]
END_TOKEN = "1"  # <eos> of the default model


@pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["max_tokens", "n_predict", "max_completion_tokens"])
@pytest.mark.parametrize("count", [0, 1, 2, 3.0])
def test_answer_has_as_many_tokens_as_were_asked_for(daemon: Daemon, name: str, count: float, stream: bool) -> None:
    prompt = {"messages": HELLO} if name == "max_completion_tokens" else {"prompt": "a"}
    answer = ask(daemon, stream=stream, ignore_eos=True, stop="\n\n\n", **GREEDY, **prompt, **{name: count})
    if answer.finish_reason == "stop":  # a base model's chat ends where it writes the person's next line
        assert answer.num_tokens < count
    else:
        assert (answer.num_tokens, answer.finish_reason) == (count, "length")
    assert (answer.text == "") == (count == 0)


def test_newer_name_of_the_limit_wins(daemon: Daemon) -> None:
    answer = ask(daemon, messages=HELLO, max_tokens=1, max_completion_tokens=2, ignore_eos=True, **GREEDY)
    assert answer.num_tokens == 2


def test_completion_has_16_tokens_unless_told_otherwise(daemon: Daemon) -> None:
    assert ask(daemon, prompt="The quick brown fox", ignore_eos=True, **GREEDY).num_tokens == 16


def test_answer_that_reaches_its_limit_says_so(daemon: Daemon) -> None:
    assert ask(daemon, **exactly(20)).finish_reason == "length"


@pytest.mark.parametrize("stop", [None, [], "", [""], ["x"]], ids=str)
def test_end_token_ends_the_answer_whatever_the_stop_strings(daemon: Daemon, stop: object) -> None:
    answer = ask(daemon, prompt="a", max_tokens=5, logit_bias={END_TOKEN: 100}, stop=stop)
    assert (answer.text, answer.finish_reason, answer.num_tokens) == ("", "stop", 1)


def test_end_token_waits_for_the_least_number_of_tokens(daemon: Daemon) -> None:
    answer = ask(daemon, prompt="a", max_tokens=5, min_tokens=2, logit_bias={END_TOKEN: 100})
    assert (answer.finish_reason, answer.num_tokens) == ("stop", 3)


def test_end_token_can_be_forbidden(daemon: Daemon) -> None:
    answer = ask(daemon, prompt="a", max_tokens=5, ignore_eos=True, logit_bias={END_TOKEN: 100})
    assert (answer.finish_reason, answer.num_tokens) == ("length", 5)


def test_bias_forces_a_token_and_forbids_it(daemon: Daemon) -> None:
    forced = ask(daemon, **ONE_TOKEN, logit_bias={"1000": 100}, **GREEDY)
    free = ask(daemon, **ONE_TOKEN, **GREEDY)
    forbidden = ask(daemon, **ONE_TOKEN, logit_bias={"1000": -100}, **GREEDY)
    assert forced.text not in (free.text, forbidden.text)
    assert free.text == forbidden.text


OPTIONAL = [
    *[
        "model",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "n_predict",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repeat_penalty",
    ],
    *[
        "repetition_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "stop",
        "ignore_eos",
        "cache_prompt",
        "user",
    ],
    *["sse_ping_interval", "response_format", "grammar", "json_schema", "logprobs"],
]
OPTIONAL_IN_CHAT = [
    *[
        "max_completion_tokens",
        "top_logprobs",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "modalities",
        "audio",
    ],
    *["web_search_options", "parallel_tool_calls", "metadata", "store"],
]
OPTIONAL_IN_COMPLETIONS = ["best_of", "echo", "suffix"]


@pytest.mark.parametrize("name", OPTIONAL + OPTIONAL_IN_CHAT)
def test_null_is_absent_in_a_chat(daemon: Daemon, name: str) -> None:
    response = post(daemon, {"messages": HELLO} | {"max_completion_tokens": 1} | {name: None, "max_tokens": 1})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", OPTIONAL + OPTIONAL_IN_COMPLETIONS)
def test_null_is_absent_in_a_completion(daemon: Daemon, name: str) -> None:
    assert post(daemon, ONE_TOKEN | {name: None}).status_code == 200


@pytest.mark.parametrize(
    "message",
    [{"name": None}, {"tool_calls": None}, {"content": [{"type": "text", "text": "a", "cache_control": None}]}],
    ids=["name", "tool_calls", "part"],
)
def test_null_is_absent_in_a_message(daemon: Daemon, message: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "a"} | message]
    assert post(daemon, {"messages": messages, "max_tokens": 1}).status_code == 200


def test_null_is_absent_in_stream_options(daemon: Daemon) -> None:
    assert post(daemon, ONE_TOKEN | {"stream": True, "stream_options": {"include_usage": None}}).status_code == 200


@pytest.mark.parametrize("name", ["messages", "prompt"])
def test_null_is_absent_where_something_is_needed(daemon: Daemon, name: str) -> None:
    assert error_of(post(daemon, {name: None}))["param"] == name
