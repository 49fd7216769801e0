"""What households ask for, drawn from distributions. Same seed, same trace.

Lengths are log-normal, as they are found to be in public traces of chats and of code (Azure's and BurstGPT's): many
short ones, few that are very long. People ask independently of one another (exponential gaps); agents ask in bursts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from homeai.errors import ConfigError
from homeai.evaluation.bench.trace import Call, Part, Trace

GROUPS: Final = ("chat", "long", "agents")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal tokens: half are below `median`, one in six above `median` × e^`sigma`; cut at both ends."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return max(self.low, min(self.high, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long texts are in one house. `scaled` makes them smaller for a small machine or context."""

    question: Lengths = Lengths(40, 0.8, 4, 400)
    answer: Lengths = Lengths(80, 0.6, 8, 400)
    document: Lengths = Lengths(1800, 0.5, 600, 6000)
    summary: Lengths = Lengths(110, 0.4, 32, 300)
    passage: Lengths = Lengths(220, 0.6, 40, 900)
    step: Lengths = Lengths(50, 0.9, 4, 400)
    house: int = 450  # what an assistant is told about the house
    tools: int = 800  # what an agent is told about its tools
    answer_patience_s: float = 4.0  # after which an agent's user stops it, if he does

    def scaled(self, factor: float) -> Sizes:
        def less(lengths: Lengths) -> Lengths:
            low, high = max(1, round(lengths.low * factor)), max(2, round(lengths.high * factor))
            return Lengths(lengths.median * factor, lengths.sigma, low, high)

        return Sizes(
            question=less(self.question),
            answer=less(self.answer),
            document=less(self.document),
            summary=less(self.summary),
            passage=less(self.passage),
            step=less(self.step),
            house=max(1, round(self.house * factor)),
            tools=max(1, round(self.tools * factor)),
            answer_patience_s=self.answer_patience_s,
        )


def household(
    seed: int, duration_s: float, *, groups: tuple[str, ...] = GROUPS, rate: float = 1.0, sizes: Sizes | None = None
) -> Trace:
    """The three groups in one house. `rate` 1 is a busy evening: about one request in two seconds.

    Raises `ConfigError` for a group that is not known.
    """
    for group in groups:
        if group not in _MAKERS:
            raise ConfigError(f"--group {group}: known are {', '.join(_MAKERS)}")
    calls = [
        call
        for group in groups  # each from its own numbers: a group is the same with and without the others
        for call in _MAKERS[group](random.Random(f"{seed}/{group}"), duration_s, rate, sizes or Sizes())
    ]
    return Trace.of(" + ".join(groups), [call for call in calls if call.at < duration_s], duration_s)


def overlap(seed: int, count: int, sizes: Sizes | None = None) -> Trace:
    """`count` short chats at once, each from its own source: nothing is shared, all answers are equally long."""
    sizes, rng = sizes or Sizes(), random.Random(f"{seed}/overlap/{count}")
    num_output = round(sizes.answer.median)
    calls = [
        Call(
            at=0.0,
            group="chat",
            source=f"person-{number}",
            fairness_class="interactive",
            prompt=[Part(f"overlap/{count}/{number}", 2 * sizes.question.draw(rng))],
            max_tokens=num_output,
        )
        for number in range(count)
    ]
    return Trace.of(f"{count} at once", calls)


def apart(seed: int, count: int, gap_s: float, sizes: Sizes | None = None) -> Trace:
    """`count` short chats, one every `gap_s` seconds: a house in which nobody waits for anybody."""
    sizes, rng = sizes or Sizes(), random.Random(f"{seed}/apart/{count}")
    calls = [
        Call(
            at=number * gap_s,
            group="chat",
            source=f"person-{number % 3}",
            fairness_class="interactive",
            prompt=[Part(f"apart/{number}", sizes.question.draw(rng))],
            max_tokens=sizes.answer.draw(rng),
        )
        for number in range(count)
    ]
    return Trace.of("one at a time", calls, count * gap_s)


def _chat(rng: random.Random, duration_s: float, rate: float, sizes: Sizes) -> Iterator[Call]:
    """Voice with what it is told about the house, and people whose conversations grow turn by turn."""
    house = [Part("house", sizes.house)]
    for number, at in enumerate(_instants(rng, duration_s, 6.0 / rate)):
        prompt = [Part(f"voice/{number}", 4 + rng.randrange(12))]
        yield Call(
            at=at,
            group="chat",
            source="voice-kitchen",
            fairness_class="voice",
            system=house,
            prompt=prompt,
            max_tokens=8 + rng.randrange(24),
        )
    for person in range(2):
        talk: list[Part] = []
        for number, at in enumerate(_instants(rng, duration_s, 12.0 / rate)):
            if rng.random() < 0.3:
                talk = []
            talk = [*talk, Part(f"phone-{person}/{number}", sizes.question.draw(rng))]
            num_output = sizes.answer.draw(rng)
            yield Call(
                at=at,
                group="chat",
                source=f"phone-{person}",
                fairness_class="interactive",
                prompt=talk,
                max_tokens=num_output,
            )
            talk = [*talk, Part(f"phone-{person}/{number}/answer", num_output)]
            if sum(part.num_tokens for part in talk) > sizes.document.high / 2:
                talk = []


def _long(rng: random.Random, duration_s: float, rate: float, sizes: Sizes) -> Iterator[Call]:
    """Documents that are read once, from a program that nobody waits for."""
    for number, at in enumerate(_instants(rng, duration_s, 24.0 / rate)):
        document = [Part(f"document/{number}", sizes.document.draw(rng))]
        yield Call(
            at=at,
            group="long",
            source="documents",
            fairness_class="background",
            prompt=document,
            max_tokens=sizes.summary.draw(rng),
        )


def _agents(rng: random.Random, duration_s: float, rate: float, sizes: Sizes) -> Iterator[Call]:
    """Runs of two to six calls that begin alike and grow by what was found; some runs are stopped midway.

    One run in three is a question over passages: a few calls at once, of which many share a passage.
    """
    tools = [Part("tools", sizes.tools)]
    for number, at in enumerate(_instants(rng, duration_s, 18.0 / rate)):
        if rng.random() < 1 / 3:
            yield from _retrieval(rng, number, at, sizes)
            continue
        text = [Part(f"task/{number}", sizes.question.draw(rng))]
        stops = rng.random() < 0.2
        num_steps = 2 + rng.randrange(5)
        for step in range(num_steps):
            num_output = sizes.step.draw(rng)
            leaves = sizes.answer_patience_s * rng.uniform(0.1, 1) if stops and step == num_steps - 1 else None
            yield Call(
                at=at,
                group="agents",
                source="agent",
                fairness_class="coding",
                system=tools,
                prompt=text,
                max_tokens=num_output,
                cancel_after_s=leaves,
            )
            found = Part(f"task/{number}/found/{step}", sizes.passage.draw(rng))
            text = [*text, Part(f"task/{number}/step/{step}", num_output), found]
            at += rng.expovariate(1 / 1.5)


def _retrieval(rng: random.Random, number: int, at: float, sizes: Sizes) -> Iterator[Call]:
    passages = [Part(f"passage/{rng.randrange(6)}", round(sizes.passage.median)) for _ in range(2)]
    for call in range(2 + rng.randrange(3)):
        question = Part(f"rag/{number}/{call}", sizes.question.draw(rng))
        prompt = [*passages, question]
        yield Call(
            at=at + 0.05 * call,
            group="agents",
            source="rag",
            fairness_class="coding",
            prompt=prompt,
            max_tokens=sizes.answer.draw(rng),
        )


_MAKERS: Final[dict[str, Callable[[random.Random, float, float, Sizes], Iterator[Call]]]] = {
    "chat": _chat,
    "long": _long,
    "agents": _agents,
}


def _instants(rng: random.Random, duration_s: float, mean_gap_s: float) -> Iterator[float]:
    """Arrivals of a Poisson process."""
    at = rng.expovariate(1 / mean_gap_s)
    while at < duration_s:
        yield at
        at += rng.expovariate(1 / mean_gap_s)
