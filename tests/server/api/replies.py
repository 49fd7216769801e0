"""Pieces of an answer and the reply that they belong to, made by hand: what a dialect is given."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from homeai.messages import AddRequest
from homeai.request import FinishReason, SampledToken, SamplingParams
from homeai.server.generation import Generation
from homeai.server.parts import CallArguments, CallEnd, CallStart, Part
from homeai.server.reply import Piece, Reply
from homeai.server.result import Result


@dataclass
class FakeReply:
    """Of one choice. `stopped` is the stop string that ended it."""

    num_prompt: int = 10
    num_cached: int = 0
    num_output: int = 5
    stopped: str | None = None
    text: Any = field(default_factory=lambda: SimpleNamespace(name="model"))

    @property
    def generations(self) -> list[Generation]:
        add = AddRequest(
            request_id="r",
            prompt_token_ids=[5] * self.num_prompt,
            sampling=SamplingParams(),
            source="default",
            fairness_class="interactive",
            arrival_at=0.0,
        )
        generation = Generation(add, "/x", num_output_tokens=self.num_output, num_cached_tokens=self.num_cached)
        return [generation]

    def stopped_by(self, choice: int) -> str | None:
        assert choice == 0
        return self.stopped

    @property
    def reply(self) -> Reply:
        return cast(Reply, self)


def piece(*parts: Part, reason: FinishReason | None = None, tokens: tuple[SampledToken, ...] = ()) -> Piece:
    return Piece(0, list(parts), list(tokens), reason)


def call(number: int, name: str, arguments: str, *, is_whole: bool = True) -> list[Part]:
    """A call whose arguments come in two parts."""
    middle = len(arguments) // 2
    parts: list[Part] = [CallStart(number, f"call_{number}", name)]
    parts += [CallArguments(number, text) for text in (arguments[:middle], arguments[middle:]) if text]
    return [*parts, CallEnd(number)] if is_whole else parts


def result(*pieces: Piece) -> Result:
    whole = Result()
    for each in pieces:
        whole.add(each)
    return whole


def events(stream: bytes) -> list[Any]:
    """Of a stream whose blocks are `event: NAME`, `data: {"type": NAME, …}`, LF only."""
    assert b"\r" not in stream
    *blocks, end = stream.decode().split("\n\n")
    assert end == ""
    data = []
    for block in blocks:
        name, line = block.split("\n")
        data.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {data[-1]['type']}"
    return data
