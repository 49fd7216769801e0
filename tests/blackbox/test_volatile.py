"""A clock or a checksum in the system prompt costs nobody the rest of it, where the source's rules know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.blackbox.stories import cached_tokens, prompt_tokens, story
from tests.daemon import Daemon
from tests.streaming import CHAT

VOICE = (
    "{name: voice, class: voice, match: {header: [voice]}, "
    r"volatile: [{pattern: 'The current time is [0-9:]+\.?', action: move}]}"
)
CODER = "{name: coder, class: coding, match: {header: [coder]}, volatile: [{pattern: 'cch=[0-9a-f]+;', action: drop}]}"


@pytest.fixture(scope="module")
def steady(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon(f"sources=[{VOICE}, {CODER}]")


def chat(daemon: Daemon, source: str, system: object, question: str, **fields: object) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 2, **fields}
    answer = httpx.post(daemon.url + CHAT, json=body, headers={"X-HomeAI-Source": source}, timeout=120.0)
    answer.raise_for_status()
    return answer


def cached_at_second_time(daemon: Daemon, source: str, prompt: Callable[[str], object], parts: list[str]) -> Any:
    """Cached tokens of the second of two chats whose system prompts differ in a part, and the tokens of its prompt."""
    for part in parts:
        answer = chat(daemon, source, prompt(part), "Is the lamp on?").json()
    return cached_tokens(answer), prompt_tokens(answer)


def house(seed: int) -> Callable[[str], str]:
    text = story(300, seed)
    return lambda time: f"You speak for a house. The current time is {time}. {text}"


def agent(seed: int) -> Callable[[str], list[dict[str, str]]]:
    text = story(300, seed)
    return lambda checksum: [
        {"type": "text", "text": f"x-header: version=2; cch={checksum};"},
        {"type": "text", "text": text},
    ]


TIMES = ["12:34:56", "13:35:07"]
CHECKSUMS = ["04f3a", "b9721"]


@pytest.mark.parametrize(("source", "prompt", "parts"), [("voice", house(51), TIMES), ("coder", agent(52), CHECKSUMS)])
def test_long_stable_part_is_found_again_where_the_source_has_the_rule(
    steady: Daemon, source: str, prompt: Callable[[str], object], parts: list[str]
) -> None:
    num_cached, num_prompt = cached_at_second_time(steady, source, prompt, parts)
    assert num_cached > num_prompt - 60
    assert num_cached > 250


@pytest.mark.parametrize(("prompt", "parts"), [(house(53), TIMES), (agent(54), CHECKSUMS)])
def test_it_is_read_anew_where_it_has_none(steady: Daemon, prompt: Callable[[str], object], parts: list[str]) -> None:
    num_cached, num_prompt = cached_at_second_time(steady, "somebody", prompt, parts)
    assert num_cached < 40
    assert num_prompt > 250


@pytest.mark.parametrize("stream", [False, True])
def test_answer_says_what_was_done_with_the_prompt(steady: Daemon, stream: bool) -> None:
    system = house(55)("1:00")
    answer = chat(steady, "voice", system, "Is it late?", stream=stream)
    assert answer.headers["X-HomeAI-Notes"] == "volatile parts of the prompt: 1 moved, 0 dropped"
    for source, text in (("somebody", system), ("voice", "You speak.")):
        assert "X-HomeAI-Notes" not in chat(steady, source, text, "Is it late?", stream=stream).headers
