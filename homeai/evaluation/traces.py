"""Workloads by name: what a home does in a minute and a half, and what it must bear. Same seed, same trace.

A prompt is made of words, each one token (so it is for this vocabulary in the default model), so that prompts share
a beginning exactly where their texts would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import msgspec

from homeai.backends.simulated.runner import output_token
from homeai.evaluation.workload import Arrival

BOS: Final = 2
FIRST_WORD: Final = 100  # ids below are punctuation
NUM_WORDS: Final = 129
QUESTION: Final = [10, 11, 12]  # "\nQ:"
ANSWER: Final = [10, 13, 12]  # "\nA:"

Words = list[int]
Who = tuple[str, str]  # source, class
_ANY_WORD: Final = range(FIRST_WORD, FIRST_WORD + NUM_WORDS)


def words(rng: random.Random, count: int) -> Words:
    return [rng.choice(_ANY_WORD) for _ in range(count)]


def household(seed: int = 11, duration_s: float = 90.0) -> list[Arrival]:
    """Voice with a long shared prefix, two phones, a laptop that asks three things at once, a NAS with documents.

    The same draws in the same order as the bench's load generator (`--trace household`): with the default model the
    prompts are the same in number, time and length, and share the same tokens.
    """
    rng, arrivals = random.Random(seed), list[Arrival]()
    house, agent = words(random.Random(101), 600), words(random.Random(102), 800)

    def ask(
        at: float, who: tuple[str, str], prompt: Words, max_tokens: int, cancel_after_s: float | None = None
    ) -> None:
        arrivals.append(_arrival(at, who, prompt, max_tokens, cancel_after_s))

    t = 1.0
    while t < duration_s:
        ask(t, ("voice-kitchen", "voice"), house + QUESTION + words(rng, 10) + ANSWER, 24)
        t += rng.expovariate(1 / 2.0) + 0.7
    for phone in range(2):
        t = rng.uniform(0, 3)
        while t < duration_s:
            ask(t, (f"phone-{phone}", "interactive"), words(rng, rng.randint(40, 150)), 64)
            t += rng.expovariate(1 / 9.0) + 2
    t = 2.0
    while t < duration_s:
        for number in range(3):
            prompt = agent + words(rng, rng.randint(20, 120))
            cancel_after_s = 0.8 if rng.random() < 0.25 else None
            ask(t + number * 0.05, ("laptop", "coding"), prompt, 64, cancel_after_s)
        t += rng.expovariate(1 / 16.0) + 6
    t = 0.5
    while t < duration_s:
        ask(t, ("nas", "background"), words(rng, 1500), 48)
        t += 20
    return _in_time(arrivals)


def overlap(seed: int = 11, count: int = 8, *, shared_words: int = 0) -> list[Arrival]:
    """`count` requests at once, each from its own source; with `shared_words` they begin alike."""
    rng = random.Random(seed * 1000 + count)
    prefix = words(random.Random(seed * 1000 + 109), shared_words)
    return [
        _arrival(0.0, (f"s{i}", "interactive"), prefix + words(rng, 30 if prefix else rng.randint(110, 210)), 64)
        for i in range(count)
    ]


def shared(seed: int = 11, count: int = 8) -> list[Arrival]:
    return overlap(seed, count, shared_words=800)


def bursts(seed: int = 11, duration_s: float = 90.0) -> list[Arrival]:
    """Nothing for a while, then everybody at once: twelve sources of all classes within half a second."""
    rng, arrivals = random.Random(seed), list[Arrival]()
    sources = [("voice", 617, 24), ("interactive", 120, 64), ("coding", 860, 64), ("background", 1200, 48)]
    heads = {name: words(random.Random(200 + n), size // 2) for n, (name, size, _) in enumerate(sources)}
    t = 1.0
    while t < duration_s:
        for number in range(12):
            name, size, max_tokens = sources[number % len(sources)]
            prompt = heads[name] + words(rng, rng.randint(size // 4, size // 2))
            arrivals.append(_arrival(t + rng.uniform(0, 0.5), (f"{name}-{number // 4}", name), prompt, max_tokens))
        t += rng.uniform(12, 20)
    return _in_time(arrivals)


def adversarial(seed: int = 11, duration_s: float = 90.0) -> list[Arrival]:
    """One source floods, one sends the longest prompts, one the shortest; clients leave; a household lives on."""
    rng = random.Random(seed)
    arrivals = household(seed, duration_s)
    for _ in range(200):
        at = rng.uniform(0, duration_s / 3)
        arrivals.append(_arrival(at, ("flooder", "interactive"), words(rng, rng.randint(20, 400)), 64))
    for number in range(max(1, int(duration_s // 30))):
        arrivals.append(_arrival(30.0 * number, ("giant", "interactive"), words(rng, 6000), 64))
    for number in range(int(duration_s)):
        arrivals.append(_arrival(float(number), ("tiny", "coding"), words(rng, 1), 2))
    for number in range(int(duration_s // 3)):
        who = (f"guest-{number}", rng.choice(("interactive", "coding", "background")))
        guest = _arrival(rng.uniform(0, duration_s), who, words(rng, rng.randint(50, 1500)), 64, rng.uniform(0, 2))
        arrivals.append(msgspec.structs.replace(guest, cancels_on_token=False))
    return _in_time(arrivals)


def conversation(seed: int = 11, num_turns: int = 4) -> list[Arrival]:
    """One person, one text that grows: each turn holds all before it, the simulated answers too."""
    rng = random.Random(seed)
    text, arrivals = words(rng, 1000), list[Arrival]()
    for turn in range(num_turns):
        arrivals.append(_arrival(30.0 * turn, ("phone", "interactive"), list(text), 64))
        text += [output_token(index) for index in range(64)] + words(rng, 40)
    return arrivals


def scatter(seed: int, count: int = 25, *, max_prompt: int = 60, max_output: int = 30) -> list[Arrival]:
    """Anything at all, small: many ties in time, shared beginnings, clients that leave."""
    rng, at, arrivals = random.Random(seed), 0.0, list[Arrival]()
    for _ in range(count):
        at += rng.choice((0.0, 0.0, 0.01, 0.5))
        size = rng.randint(1, max_prompt)
        head = words(random.Random(rng.randrange(3)), rng.randint(0, size))
        arrivals.append(
            Arrival(
                at=at,
                source=rng.choice("abc"),
                fairness_class=rng.choice(("voice", "interactive", "coding", "background")),
                prompt_token_ids=head + words(rng, size - len(head)),
                max_tokens=rng.randint(0, max_output),
                cancel_after_s=rng.choice((None, None, None, 0.0, 0.05, 1.0)),
                cancels_on_token=rng.random() < 0.5,
            )
        )
    return arrivals


TRACES: Final[dict[str, Callable[[int], list[Arrival]]]] = {
    "household": household,
    "overlap": overlap,
    "shared": shared,
    "bursts": bursts,
    "adversarial": adversarial,
    "conversation": conversation,
}


def _arrival(at: float, who: Who, prompt: Words, max_tokens: int, cancel_after_s: float | None = None) -> Arrival:
    source, fairness_class = who
    return Arrival(
        at=at,
        source=source,
        fairness_class=fairness_class,
        prompt_token_ids=[BOS, *prompt],
        max_tokens=max_tokens,
        cancel_after_s=cancel_after_s,
        cancels_on_token=cancel_after_s is not None,
    )


def _in_time(arrivals: list[Arrival]) -> list[Arrival]:
    return sorted(arrivals, key=lambda arrival: arrival.at)
