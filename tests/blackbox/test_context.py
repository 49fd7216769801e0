"""The edges of the context: prompts that do not fit, answers that reach its end. Cases B1, B4, B6, B8."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.blackbox.asking import BOTH_WAYS, ask, assert_serves, error_of, post
from tests.daemon import Daemon
from tests.streaming import document

MAX_LEN = 64  # tokens, prompt and answer together
WORDS = "word " * 200


@pytest.fixture(scope="module")
def small(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon(f"scheduler.max_model_len={MAX_LEN}")


def user(content: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": WORDS}, "prompt"),
        ({"prompt": document(MAX_LEN)}, "prompt"),
        ({"prompt": ["short", WORDS]}, "prompt"),
        ({"prompt": [document(5), document(MAX_LEN)]}, "prompt"),
        (user(WORDS), "messages"),
        (user([{"type": "text", "text": WORDS}] * 2), "messages"),
        ({"messages": [{"role": "system", "content": WORDS}, {"role": "user", "content": "Hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "Hi"}] * 50}, "messages"),
    ],
    ids=["text", "ids", "texts", "id-lists", "message", "parts", "system", "conversation"],
)
def test_prompt_that_does_not_fit_is_refused_before_any_byte_of_an_answer(
    small: Daemon, body: dict[str, object], param: str, stream: bool
) -> None:
    error = error_of(post(small, body | {"stream": stream, "max_tokens": 1}))
    num_tokens, limit = error["n_prompt_tokens"], error["n_ctx"]
    assert num_tokens > limit == MAX_LEN - 1
    assert error["message"].startswith(f"prompt is too long: {num_tokens} tokens > {limit} maximum")
    assert (error["code"], error["type"], error["param"]) == ("context_length_exceeded", "invalid_request_error", param)
    assert_serves(small)


@pytest.mark.parametrize("body", [{"prompt": "word " * 1_600_000}, user("word " * 1_600_000)], ids=["text", "message"])
def test_text_that_is_much_too_long_is_refused_by_its_size(small: Daemon, body: dict[str, object]) -> None:
    """Nobody waits for eight megabytes to be tokenised; both sides are named all the same."""
    error = error_of(post(small, body | {"max_tokens": 1}))
    num_tokens, limit = error["n_prompt_tokens"], error["n_ctx"]
    assert limit == MAX_LEN - 1
    assert 100_000 < num_tokens < 1_600_000
    assert error["message"].startswith(f"prompt is too long: at least {num_tokens} tokens > {limit} maximum")
    assert error["code"] == "context_length_exceeded"


def test_prompt_may_leave_room_for_one_token_only(small: Daemon) -> None:
    answer = ask(small, prompt=document(MAX_LEN - 1), max_tokens=5, ignore_eos=True)
    assert (answer.num_tokens, answer.finish_reason) == (1, "length")


@pytest.mark.parametrize("stream", BOTH_WAYS, ids=["whole", "stream"])
@pytest.mark.parametrize(
    "body",
    [{"prompt": document(40), "max_tokens": 1000}, {"prompt": document(40), "max_tokens": -1}, user("Hello")],
    ids=["wants-more", "wants-all", "chat-without-limit"],
)
def test_answer_ends_with_length_where_the_context_ends(small: Daemon, body: dict[str, object], stream: bool) -> None:
    answer = ask(small, stream=stream, ignore_eos=True, logit_bias={"236743": 100}, **body)
    assert answer.finish_reason == "length"
    assert answer.usage["total_tokens"] == MAX_LEN


def test_secret_at_the_head_of_a_long_prompt_is_never_cut_away_silently(daemon: Daemon) -> None:
    text = f"The secret word is platypus. {'And so it goes on. ' * 4000} What is the secret word?"
    for body in (user(text), {"prompt": text}):
        assert error_of(post(daemon, body))["code"] == "context_length_exceeded"
    assert_serves(daemon)
