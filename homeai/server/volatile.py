"""Parts of a prompt's beginning that change from request to request: a clock, a checksum.

Whatever follows such a part is new to the prefix cache each time, however long it stayed the same. A source's
rules take it out, or move it to where what follows is new anyway: to the end of the last user message, so that the
model still sees it. Pure: messages in, messages out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from homeai.config import SourceConfig, VolatileConfig
from homeai.patterns import Pattern, compiled
from homeai.server.conversation import ChatMessage
from homeai.server.turns import PARAGRAPH

MAX_CHARS: Final = 64 * 1024  # of a text that are looked at: many matches take time

_NOT_UTF8: Final = re.compile("[\ud800-\udfff]")  # the tokenizer knows no half letters either

Content = str | Sequence[Mapping[str, object]] | None


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: Pattern
    moves: bool

    @classmethod
    def of(cls, config: VolatileConfig) -> Rule:
        return cls(compiled(config.pattern), config.action == "move")


def rules_by_source(sources: Iterable[SourceConfig]) -> dict[str, tuple[Rule, ...]]:
    return {source.name: tuple(map(Rule.of, source.volatile)) for source in sources}


@dataclass(frozen=True, slots=True)
class Steadied:
    """`messages` without their volatile parts, but for those that were `moved`."""

    messages: list[ChatMessage]
    num_dropped: int = 0
    moved: tuple[str, ...] = ()

    @property
    def note(self) -> str | None:
        """For the person who wrote the rules."""
        if not (self.moved or self.num_dropped):
            return None
        return f"volatile parts of the prompt: {len(self.moved)} moved, {self.num_dropped} dropped"


def steadied(messages: Sequence[ChatMessage], rules: Sequence[Rule]) -> Steadied:
    """Applies to system messages and to the first message, whoever is said to speak in it."""
    cutter = _Cutter(rules)
    result = [
        replace(message, content=cutter.cut(message.content)) if _is_beginning(message, index) else message
        for index, message in enumerate(messages)
    ]
    if cutter.moved:
        last = _place_for_moved(result)
        result[last] = replace(result[last], content=_with_end(result[last].content, "\n".join(cutter.moved)))
    return Steadied(result, cutter.num_dropped, tuple(cutter.moved))


def _is_beginning(message: ChatMessage, index: int) -> bool:
    return index == 0 or message.role in ("system", "developer")


def _place_for_moved(messages: Sequence[ChatMessage]) -> int:
    """The last user message; without one, the last that is looked at."""
    from_user = [index for index, message in enumerate(messages) if message.role == "user"]
    beginnings = [index for index, message in enumerate(messages) if _is_beginning(message, index)]
    return (from_user or beginnings)[-1]


def _with_end(content: Content, text: str) -> Content:
    if content is None or isinstance(content, str):
        return f"{content}{PARAGRAPH}{text}" if content else text
    return [*content, {"type": "text", "text": text}]


class _Cutter:
    """Cuts every match out, and keeps what is to be moved."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.num_dropped = 0
        self.moved: list[str] = []

    def cut(self, content: Content) -> Content:
        if content is None or isinstance(content, str):
            return self._cut_text(content) if content else content
        return [self._cut_part(part) for part in content]

    def _cut_part(self, part: Mapping[str, object]) -> Mapping[str, object]:
        text = part.get("text")
        return {**part, "text": self._cut_text(text)} if isinstance(text, str) else part

    def _cut_text(self, text: str) -> str:
        text = _NOT_UTF8.sub("\ufffd", text)
        for rule in self._rules:
            text = self._apply(rule, text)
        return text

    def _apply(self, rule: Rule, text: str) -> str:
        kept, end = [], 0
        for match in rule.pattern.finditer(text, 0, min(len(text), MAX_CHARS)):
            kept.append(text[end : match.start()])
            end = match.end()
            if not rule.moves:
                self.num_dropped += 1
            elif part := match.group().strip():
                self.moved.append(part)
        return "".join([*kept, text[end:]])
