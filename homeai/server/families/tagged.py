"""Answers that mark reasoning and calls with tags in the text: all families but gpt-oss."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from homeai.server.conversation import Tool
from homeai.server.families.arguments import arguments_of
from homeai.server.families.calls import Calls
from homeai.server.families.cursor import Brackets, Mismatch, Unfinished, held_length
from homeai.server.families.heads import Head, HeadReader
from homeai.server.families.syntax import ReplyFormat
from homeai.server.parts import Content, Part, Reasoning

MAX_HEAD_CHARS: Final = 16_384  # a longer beginning of a call is none


_BLANK: Final = re.compile(r"\s*")


class Place(Enum):
    """Where in an answer the next character stands."""

    REASONING = auto()
    TEXT = auto()
    ARGUMENTS = auto()
    OBJECT = auto()  # behind the arguments of a call that is an object itself
    BETWEEN = auto()  # behind a call


class Tagged:
    """See `AnswerParser`. `_held` is what came and is not out yet; each step takes from its beginning."""

    def __init__(
        self, format: ReplyFormat, tools: Sequence[Tool], begins_in_reasoning: bool, new_call_id: Callable[[], str]
    ) -> None:
        by_name = {tool.name: tool for tool in tools}
        self._readers = [HeadReader(syntax, by_name) for syntax in (format.calls, *format.also)] if tools else []
        self._open, self._close = (mark.strip() for mark in format.reasoning or ("", ""))
        self._thinks_anywhere = self._open in format.markers
        firsts = {reader.first for reader in self._readers} | {mark[0] for mark in (self._open, self._close) if mark}
        self._first_of_mark = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]" if firsts else "(?!)")
        self._calls = Calls(new_call_id)
        self._steps = {
            Place.REASONING: self._read_reasoning,
            Place.TEXT: self._read_text,
            Place.ARGUMENTS: self._read_arguments,
            Place.OBJECT: self._read_object,
            Place.BETWEEN: self._read_between,
        }
        self._place = Place.REASONING if begins_in_reasoning and format.reasoning else Place.TEXT
        self._held = ""
        self._is_last = self._is_cut = False
        self._skips_space = False
        self._has_thought = False  # some of this reasoning is out
        self._has_text = False
        self._line_is_blank = True  # nothing since the last line end
        self._depth = 0  # objects open around the arguments at hand
        self._reader: HeadReader | None = None  # of the call at hand
        self._joints: list[str] = []  # what may still stand behind it

    def push(self, text: str) -> list[Part]:
        if not self._held and self._is_text(text):
            self._line_is_blank = False
            return [Content(text)]
        self._held += text
        return self._read()

    def finish(self, is_cut: bool) -> list[Part]:
        self._is_last, self._is_cut = True, is_cut
        return self._read()

    def _read(self) -> list[Part]:
        out: list[Part] = []
        while self._held and self._steps[self._place](out):
            pass
        return out

    def _is_text(self, text: str) -> bool:
        """Nothing but text in the midst of text: the usual case, told fast."""
        return (
            self._has_text
            and self._place is Place.TEXT
            and not self._skips_space
            and self._first_of_mark.search(text) is None
            and not text[-1:].isspace()
            and text != ""
        )

    # ---- reasoning ----------------------------------------------------------------------------------

    def _read_reasoning(self, out: list[Part]) -> bool:
        if not self._has_thought:
            self._held = self._held.lstrip()
            if self._held.startswith(self._open):  # once more, after the prompt's own
                self._held = self._held[len(self._open) :]
                return True
            if self._may_become(self._open):
                return False
        found = self._held.find(self._close)
        if found >= 0:
            self._think(found, out)
            self._held = self._held.lstrip()[len(self._close) :]
            self._turn_to_text()
            return True
        self._think(len(self._held) - (0 if self._is_last else held_length(self._held, self._close)), out)
        return False

    def _think(self, end: int, out: list[Part]) -> None:
        text = self._held[:end].rstrip()
        self._held = self._held[len(text) :]
        if text:
            self._has_thought = True
            out.append(Reasoning(text))

    def _turn_to_text(self) -> None:
        self._place, self._skips_space, self._line_is_blank = Place.TEXT, True, True

    # ---- text ---------------------------------------------------------------------------------------

    def _read_text(self, out: list[Part]) -> bool:
        if self._skips_space:
            self._held = self._held.lstrip()
        for match in self._first_of_mark.finditer(self._held):
            try:
                if self._begin(match.start(), out):
                    return True
            except Unfinished:
                self._say(match.start(), out)
                return False
        self._say(len(self._held), out)
        return False

    def _begin(self, at: int, out: list[Part]) -> bool:
        """Whether reasoning or a call begins there. Raises `Unfinished` where that is still open."""
        if self._begin_reasoning(at, out):
            return True
        is_hopeless = self._is_last or len(self._held) - at > MAX_HEAD_CHARS
        for reader in self._readers:
            if reader.stands_alone and not self._begins_line(at):
                continue
            try:
                head = reader.read(self._held, at)
            except Mismatch:
                continue
            except Unfinished:
                if self._is_cut:  # the token limit came in the midst of a call: it is none, and no text either
                    self._say(at, out, keeps_space=False)
                    self._held = ""
                    return True
                if is_hopeless:
                    continue
                raise
            self._say(at, out, keeps_space=False)
            self._begin_call(reader, head._replace(end=head.end - at), out)
            return True
        return False

    def _begin_reasoning(self, at: int, out: list[Part]) -> bool:
        if not self._open or (self._has_text and not self._thinks_anywhere):
            return False
        is_first = not self._has_text and _is_blank(self._held, 0, at)
        if not (is_first or self._thinks_anywhere):
            return False
        rest = self._held[at : at + max(len(self._open), len(self._close))]
        if rest.startswith(self._open):
            self._say(at, out, keeps_space=False)
            self._held = self._held[len(self._open) :]
            self._place, self._has_thought = Place.REASONING, False
            return True
        if is_first and rest.startswith(self._close):  # of reasoning that never began
            self._held = self._held[at + len(self._close) :]
            self._turn_to_text()
            return True
        if not self._is_last and (self._open.startswith(rest) or (is_first and self._close.startswith(rest))):
            raise Unfinished
        return False

    def _begins_line(self, at: int) -> bool:
        line = self._held.rfind("\n", 0, at) + 1
        return _is_blank(self._held, line, at) and (line > 0 or self._line_is_blank)

    def _say(self, end: int, out: list[Part], *, keeps_space: bool = True) -> None:
        """Put out what is held up to `end`; white space at its end waits, as a mark may follow, or goes."""
        text = self._held[:end]
        may_be_followed = bool(self._readers) or self._thinks_anywhere or not self._has_text
        if not keeps_space or (may_be_followed and not self._is_last):
            text = text.rstrip()
        self._held = self._held[len(text) if keeps_space else end :]
        if text:
            self._has_text, self._skips_space, self._line_is_blank = True, False, False
            out.append(Content(text))

    # ---- calls --------------------------------------------------------------------------------------

    def _begin_call(self, reader: HeadReader, head: Head, out: list[Part]) -> None:
        self._held = self._held[head.end :]
        self._reader, self._depth, self._joints = reader, head.depth, list(reader.joints)
        if head.arguments is None:
            self._calls.begin(head.tool.name, arguments_of(reader.syntax, head.tool), out)
            self._place = Place.ARGUMENTS
        else:
            self._calls.whole(head.tool.name, head.arguments, out)
            self._place = Place.OBJECT

    def _read_arguments(self, out: list[Part]) -> bool:
        end, is_over = self._calls.read(self._held, out)
        self._held = self._held[end:]
        if is_over:
            self._place = Place.OBJECT
        return is_over

    def _read_object(self, out: list[Part]) -> bool:
        """The end of the objects around the arguments, and what else they hold."""
        self._held = self._held.lstrip()
        if self._depth and self._held.startswith("}"):
            self._held = self._held[1:]
            self._depth -= 1
        elif self._depth and self._held.startswith(","):
            end = Brackets(depth=1).end(self._held)
            if end is None and len(self._held) <= MAX_HEAD_CHARS:
                return False
            self._held = self._held[end or 0 :]
            self._depth = self._depth - 1 if end else 0
        elif self._held:
            self._place = Place.BETWEEN
        return True

    def _read_between(self, out: list[Part]) -> bool:
        assert self._reader is not None, "a call has begun"
        self._held = self._held.lstrip()
        for joint in self._joints:
            if self._held.startswith(joint):
                self._held = self._held[len(joint) :]
                self._joints.remove(joint)
                return True
            if self._may_become(joint):
                return False
        try:
            head = self._reader.read(self._held, 0, goes_on=True)
        except Unfinished:
            if not self._is_last and len(self._held) <= MAX_HEAD_CHARS:
                return False
        except Mismatch:
            pass
        else:
            self._begin_call(self._reader, head, out)
            return True
        self._turn_to_text()
        return True

    def _may_become(self, mark: str) -> bool:
        return not self._is_last and mark.startswith(self._held)


def _is_blank(text: str, start: int, end: int) -> bool:
    return _BLANK.fullmatch(text, start, end) is not None
