"""What a bench asks for: calls in time, each with the lengths and the beginnings of its text, never a text of its own.

A text is made when it is asked, from the names of its parts: equal names give equal text, so that what is shared in the
trace is shared on the server. `salt` changes every word and no length: a second run must not find the first one's
cache. A file of a trace is JSON lines, one per call.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from homeai.errors import ConfigError
from homeai.evaluation.workload import Arrival

# Each one token, with the space before it, in the vocabularies of the usual families.
_WORDS: Final = """
    the of and a to in is you that it he was for on are as with his they I at be this have from or one had by
    word but not what all were we when your can said there use an each which she do how their if will up other
    about out many then them these so some her would make like him into time has look two more write go see
    number no way could people my than first water been call who oil its now find long down day did get come
    made may part kitchen light garden door lamp music timer weather rain window heating function class return
    list value error test file import server queue model memory
    """
WORDS: Final = tuple(_WORDS.split())
FIRST_WORD_ID: Final = 100  # of the made-up vocabulary in which a trace is simulated
BOS: Final = 2


class Part(msgspec.Struct, frozen=True, array_like=True):
    """`num_tokens` words that `name` stands for."""

    name: str
    num_tokens: int


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, `at` seconds after the start. `system` is what its source sends before every question.

    cancel_after_s: the client leaves so long after it asked, whatever it has got by then.
    """

    at: float
    group: str
    source: str
    fairness_class: str
    system: list[Part] = []
    prompt: list[Part]
    max_tokens: int
    cancel_after_s: float | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(part.num_tokens for part in (*self.system, *self.prompt))


@dataclass(frozen=True, slots=True)
class Trace:
    """`calls` in order of time. `duration_s`: the window in which they are offered, idle time at its end too."""

    name: str
    calls: tuple[Call, ...]
    duration_s: float

    @classmethod
    def of(cls, name: str, calls: Iterable[Call], duration_s: float | None = None) -> Trace:
        ordered = tuple(sorted(calls, key=lambda call: call.at))
        last_at = ordered[-1].at if ordered else 0.0
        return cls(name, ordered, max(last_at, duration_s or 0.0))

    @property
    def version(self) -> str:
        """Of what is asked and when; not of its name."""
        return blake2b(_encoder.encode_lines(self.calls), digest_size=8).hexdigest()

    @property
    def offered_rps(self) -> float | None:
        """Requests per second; None when they come all at once."""
        return len(self.calls) / self.duration_s if self.duration_s > 0 else None

    @property
    def classes(self) -> dict[str, str]:
        """Class of each source."""
        return {call.source: call.fairness_class for call in self.calls}

    def faster(self, factor: float) -> Trace:
        """The same calls, `factor` times as fast after one another; clients are as patient as before."""
        return Trace(self.name, tuple(_at(call, call.at / factor) for call in self.calls), self.duration_s / factor)

    def spiked(self, factor: float) -> Trace:
        """The middle third comes `factor` times as fast, twice over, so that normal traffic follows it for long."""
        begin, end = self.duration_s / 3, 2 * self.duration_s / 3
        middle = [call for call in self.calls if begin <= call.at < end]
        squeezed_s = (end - begin) / factor
        calls = [call for call in self.calls if call.at < begin]
        calls += [_at(call, begin + (call.at - begin) / factor) for call in middle]
        calls += [_at(_renamed(call), begin + squeezed_s + (call.at - begin) / factor) for call in middle]
        shift = begin + 2 * squeezed_s - end
        calls += [_at(call, call.at + shift) for call in self.calls if call.at >= end]
        return Trace.of(f"{self.name}, spike × {factor:g}", calls, self.duration_s + shift)

    def spike_window(self, factor: float) -> tuple[float, float]:
        """Begin and end of the spike in `spiked(factor)`."""
        begin = self.duration_s / 3
        return begin, begin + 2 * begin / factor


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Call)


def save(trace: Trace, path: Path) -> None:
    path.write_bytes(_encoder.encode_lines(trace.calls))


def load(path: Path) -> Trace:
    """Raises `ConfigError` with the file and the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"trace {str(path)!r} cannot be read: {error.strerror}") from None
    calls = [_call(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not calls:
        raise ConfigError(f"trace {str(path)!r} has no calls")
    return Trace.of(path.stem, calls)


def text_of(parts: Sequence[Part], salt: str) -> str:
    """Words of `parts`, one after another."""
    return " ".join(word for part in parts for word in _words(part, salt))


def arrivals_of(trace: Trace, salt: str) -> list[Arrival]:
    """The same calls for the simulator: a word is a token."""
    return [
        Arrival(
            at=call.at,
            source=call.source,
            fairness_class=call.fairness_class,
            prompt_token_ids=[BOS, *(_token(word) for word in _all_words(call, salt))],
            max_tokens=call.max_tokens,
            cancel_after_s=call.cancel_after_s,
        )
        for call in trace.calls
    ]


def _call(line: bytes, place: str) -> Call:
    try:
        call = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{place}: not a call: {error}") from None
    if call.at < 0 or call.max_tokens < 1:
        raise ConfigError(f"{place}: at {call.at}, max_tokens {call.max_tokens}: needs at least 0 and 1")
    if not call.prompt or min(part.num_tokens for part in (*call.system, *call.prompt)) < 1:
        raise ConfigError(f"{place}: a prompt, and each of its parts, needs at least one token")
    return call


def _at(call: Call, at: float) -> Call:
    return msgspec.structs.replace(call, at=at)


def _renamed(call: Call) -> Call:
    """As another one would ask: what it shares with nobody, it shares with nobody still."""
    *shared, own = call.prompt
    return msgspec.structs.replace(call, prompt=[*shared, Part(f"{own.name}+", own.num_tokens)])


def _words(part: Part, salt: str) -> list[str]:
    return random.Random(f"{salt}/{part.name}").choices(WORDS, k=part.num_tokens)


def _all_words(call: Call, salt: str) -> list[str]:
    return [word for part in (*call.system, *call.prompt) for word in _words(part, salt)]


_IDS: Final = {word: FIRST_WORD_ID + index for index, word in enumerate(WORDS)}


def _token(word: str) -> int:
    return _IDS[word]
