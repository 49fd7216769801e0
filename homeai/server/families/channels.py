"""Answers in channels: gpt-oss's Harmony.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

A message is a header and a body. Who it is for may stand before the channel, too. (`openai-harmony` reads token ids
and fetches its vocabulary from the network, so it cannot be used here.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from homeai.server.conversation import Tool
from homeai.server.families.arguments import NO_ARGUMENTS, JsonArguments
from homeai.server.families.calls import Calls
from homeai.server.families.cursor import held_length
from homeai.server.parts import Content, Part, Reasoning

MESSAGE: Final = "<|message|>"
HEADER_MARKS: Final = ("<|start|>", "<|channel|>")
END_MARKS: Final = ("<|end|>", "<|call|>", "<|return|>")
RECIPIENT_MARK: Final = "to="  # right at the beginning: the prompt ends in `<|start|>assistant`
MAX_HEADER_CHARS: Final = 1024

_MARK: Final = re.compile("|".join(map(re.escape, HEADER_MARKS + END_MARKS)))
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


class Place(Enum):
    """Where in an answer the next character stands."""

    OUTSIDE = auto()
    HEADER = auto()
    TEXT = auto()
    REASONING = auto()
    BEFORE_ARGUMENTS = auto()
    ARGUMENTS = auto()


class Channels:
    """See `AnswerParser`. `_held` is what came and is not out yet; each step takes from its beginning."""

    def __init__(self, tools: Sequence[Tool], new_call_id: Callable[[], str]) -> None:
        self._names = {tool.name for tool in tools}
        self._calls = Calls(new_call_id)
        self._steps = {
            Place.OUTSIDE: self._read_outside,
            Place.HEADER: self._read_header,
            Place.TEXT: self._read_body,
            Place.REASONING: self._read_body,
            Place.BEFORE_ARGUMENTS: self._read_before_arguments,
            Place.ARGUMENTS: self._read_arguments,
        }
        self._place = Place.OUTSIDE
        self._name = ""  # of the tool that the message is for
        self._is_begun = False  # a header or a text came
        self._held = ""
        self._is_last = False

    def push(self, text: str) -> list[Part]:
        if self._place is Place.TEXT and text and not self._held and "<" not in text:
            return [Content(text)]
        self._held += text
        return self._read()

    def finish(self, is_cut: bool) -> list[Part]:
        self._is_last = True
        return self._read()

    def _read(self) -> list[Part]:
        out: list[Part] = []
        while self._held and self._steps[self._place](out):
            pass
        return out

    def _read_outside(self, out: list[Part]) -> bool:
        """Between messages, where only a header may come; what else comes is text."""
        if self._is_begun:
            self._held = self._held.lstrip()
        marks = (*HEADER_MARKS, *END_MARKS) if self._is_begun else (*HEADER_MARKS, RECIPIENT_MARK, " " + RECIPIENT_MARK)
        if any(self._held.startswith(mark) for mark in END_MARKS if self._is_begun):
            self._held = self._held[self._held.index(">") + 1 :]
        elif any(self._held.startswith(mark) for mark in marks):
            self._place = Place.HEADER
        elif any(mark.startswith(self._held) for mark in marks) and not self._is_last:
            return False
        else:
            self._place = Place.TEXT
        return True

    def _read_header(self, out: list[Part]) -> bool:
        found = self._held.find(MESSAGE)
        if found < 0 and (self._is_last or len(self._held) > MAX_HEADER_CHARS):
            self._say(len(self._held), Content, out)
        if found < 0:
            return False
        header, self._held = self._held[:found], self._held[found + len(MESSAGE) :]
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        self._is_begun = True
        self._name = recipient[1] if recipient else ""
        if self._name in self._names:
            self._place = Place.BEFORE_ARGUMENTS
        else:
            is_reasoning = channel is not None and channel[1] == "analysis" and not recipient
            self._place = Place.REASONING if is_reasoning else Place.TEXT
        return True

    def _read_body(self, out: list[Part]) -> bool:
        part = Reasoning if self._place is Place.REASONING else Content
        match = _MARK.search(self._held)
        if match is None:
            held = 0 if self._is_last else held_length(self._held, *HEADER_MARKS, *END_MARKS)
            self._say(len(self._held) - held, part, out)
            return False
        self._say(match.start(), part, out)
        self._place, self._is_begun = Place.OUTSIDE, True
        return True

    def _say(self, end: int, part: type[Content] | type[Reasoning], out: list[Part]) -> None:
        if end:
            out.append(part(self._held[:end]))
            self._held = self._held[end:]

    def _read_before_arguments(self, out: list[Part]) -> bool:
        self._held = self._held.lstrip()
        if self._held.startswith("{"):
            self._calls.begin(self._name, JsonArguments(), out)
            self._place = Place.ARGUMENTS
        elif self._held.startswith(END_MARKS):
            self._calls.whole(self._name, NO_ARGUMENTS, out)
            self._place = Place.OUTSIDE
        elif any(mark.startswith(self._held) for mark in END_MARKS) and not self._is_last:
            return False
        else:
            self._place = Place.TEXT
        return True

    def _read_arguments(self, out: list[Part]) -> bool:
        end, is_over = self._calls.read(self._held, out)
        self._held = self._held[end:]
        if is_over:
            self._place = Place.OUTSIDE
        return is_over
