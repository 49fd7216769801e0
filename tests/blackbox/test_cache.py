"""What was computed is used again, told truly, and never anybody else's (cases I1, I2, H19)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import httpx
import pytest

from tests.blackbox.stories import cached_tokens, prompt_tokens, story
from tests.daemon import Daemon, eventually_async
from tests.streaming import COMPLETIONS, Stream, exactly

LETTERS = "bcdfghklmnprstvw"


def ask(daemon: Daemon, body: dict[str, object], source: str = "") -> dict[str, object]:
    headers = {"X-HomeAI-Source": source} if source else {}
    answer = httpx.post(f"{daemon.url}{COMPLETIONS}", json=body, headers=headers, timeout=120.0)
    answer.raise_for_status()
    return answer.json()  # type: ignore[no-any-return]


# ---- reuse ------------------------------------------------------------------------------------------


def test_same_prompt_again_is_cached_but_for_its_last_token(daemon: Daemon) -> None:
    body = exactly(4, story(300, 41))
    first, second = ask(daemon, body), ask(daemon, body)
    assert cached_tokens(first) == 0 or prompt_tokens(first) > cached_tokens(first)
    assert cached_tokens(second) == prompt_tokens(second) - 1


def test_next_turn_of_a_conversation_computes_only_what_is_new(daemon: Daemon) -> None:
    said = story(600, 42)
    answer = ask(daemon, exactly(16, said))
    text = answer["choices"][0]["text"]  # type: ignore[index]
    turn = ask(daemon, exactly(4, f"{said}{text} And then? Tell me more."))
    assert cached_tokens(turn) >= prompt_tokens(answer) - 1


def test_cache_prompt_false_computes_all_of_it(daemon: Daemon) -> None:
    body = exactly(4, story(200, 43))
    ask(daemon, body)
    assert cached_tokens(ask(daemon, body | {"cache_prompt": False})) == 0


def test_greedy_text_is_the_same_from_the_cache(daemon: Daemon) -> None:
    """The last chunk differs, so the text may where two tokens are equally likely: a repeated text leaves no choice."""
    body = exactly(24, "red green blue " * 60 + "red")
    texts = [ask(daemon, body)["choices"][0]["text"] for _ in range(3)]  # type: ignore[index]
    assert len(set(texts)) == 1


async def test_common_beginning_of_requests_that_come_at_once_is_computed_once(daemon: Daemon) -> None:
    """I1."""
    head = story(700, 44)
    async with daemon.async_client() as client:
        bodies = [exactly(4, f"{head} Item {i}.") | {"stream": False} for i in range(8)]
        answers = [r.json() for r in await asyncio.gather(*(client.post(COMPLETIONS, json=b) for b in bodies))]
    cached = sorted(cached_tokens(answer) for answer in answers)
    assert cached[0] == 0
    assert cached[1] >= prompt_tokens(answers[0]) - 30


# ---- who may see what ----------------------------------------------------------------------------------


def test_private_source_shares_with_nobody(start_daemon: Callable[..., Daemon]) -> None:
    source = "{name: diary, class: interactive, private: true, match: {header: [diary]}}"
    daemon = start_daemon(f"sources=[{source}]")
    body = exactly(4, story(200, 45))
    ask(daemon, body, "diary")
    assert cached_tokens(ask(daemon, body)) == 0
    assert cached_tokens(ask(daemon, body, "diary")) > 150


# ---- under pressure ------------------------------------------------------------------------------------


def canary(number: int) -> tuple[str, str]:
    """A word that nobody else has, and a text that goes on with it."""
    rng = random.Random(number)
    word = "".join(rng.choice(LETTERS) + rng.choice("aeiou") for _ in range(4))
    return word, f"{word} " * 24 + word


@pytest.mark.parametrize("layout", ["unified", "partitioned"])
async def test_canaries_survive_a_full_cache_and_parking(start_daemon: Callable[..., Daemon], layout: str) -> None:
    """I2, H19: far more text than cells, urgent requests that park the others, and nobody gets a foreign word."""
    daemon = start_daemon(
        f"scheduler.kv_layout={layout}",
        f"scheduler.kv_cells={900 if layout == 'unified' else 1600}",
        "scheduler.max_num_seqs=4",
        "sources=[{name: v, class: voice, match: {header: [v]}}, {name: b, class: background, match: {header: [b]}}]",
        "classes.voice.ttft_target_s=0.01",
    )
    canaries = [canary(number) for number in range(14)]
    undisturbed = []
    for word, text in canaries:
        answer = ask(daemon, exactly(12, text) | {"cache_prompt": False})
        undisturbed.append(answer["choices"][0]["text"].split().count(word))  # type: ignore[index]
    async with daemon.async_client() as client:
        streams = []
        for i, (_, text) in enumerate(canaries):
            source = "v" if i % 3 == 0 else "b"
            streams.append(Stream(client, exactly(60 if source == "b" else 30, text), source=source))
            if i % 4 == 3:
                await streams[i - 2].begun()
        texts = [(await stream.ended()).text for stream in streams]
    words = {word for word, _ in canaries}
    for (word, _), alone, text in zip(canaries, undisturbed, texts, strict=True):
        heard = text.split()
        assert not alone or word in heard
        assert set(heard).isdisjoint(words - {word})
    preemptions = daemon.status()["totals"]["preemptions"]
    assert preemptions > 0
    await eventually_async(lambda: not daemon.status()["requests"])
