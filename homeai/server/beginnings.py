"""What defeats the prefix cache: which line of a source's prompts changes from one to the next. Pure.

Of the last prompt of each source only digests of its pieces are kept (a piece is a line, or a sentence of a long one),
salted by this process. Where the next one differs first, and pieces of the old one come again behind that, the place is
counted. Its words are kept only as a mask in which nothing variable is left, and only once two changes at that place
had the same mask; never for a private source, and never of what is no system message nor a chat's first one.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from homeai.server.conversation import ChatMessage
from homeai.vitals import BARE, BeginningStatus, ChangingLine

MAX_SOURCES: Final = 64
MAX_PIECES: Final = 512  # of a prompt that are looked at
MAX_CHARS: Final = 64 * 1024
MAX_PLACES: Final = 8  # of a source
LONG_LINE: Final = 120  # characters; longer lines are divided into sentences
MAX_MASK: Final = 80
MIN_LOST_CHARS: Final = 256  # less is not worth a word

_SENTENCE: Final = re.compile(r"(?<=[.;!?]) +")
_VARIABLE: Final = re.compile(r"[^\W_]*\d[^\W_]*")
_NAME: Final = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun|"
    r"january|february|march|april|may|june|july|august|september|october|november|december|"
    r"jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec|am|pm)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """`line` counts from 1 in its message."""

    message: int
    role: str
    line: int
    text: str


@dataclass(slots=True)
class _Place:
    num_changes: int = 0
    lost_chars: int = 0
    num_moves: int = 0
    role: str = ""
    mask_digest: int = 0
    mask: str | None = None


@dataclass(slots=True)
class _Source:
    digests: list[int] = field(default_factory=list)
    num_prompts: int = 0
    num_shortened: int = 0
    lost_chars_shortened: int = 0
    num_cache_refused: int = 0
    places: dict[tuple[int, int], _Place] = field(default_factory=dict)


class Beginnings:
    """`see` is called for every prompt, a chat's after its source's `volatile` rules; the latest sources are kept."""

    def __init__(self) -> None:
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def see(
        self, source: str, messages: Sequence[ChatMessage], *, is_private: bool, may_use_cache: bool = True
    ) -> None:
        known = self._sources.setdefault(source, _Source())
        self._sources.move_to_end(source)
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)
        pieces = list(pieces_of(messages))
        digests = [hash((piece.role, piece.text)) for piece in pieces]
        if known.num_prompts:
            _compare(known, pieces, digests, is_private=is_private)
        known.digests = digests
        known.num_prompts += 1
        known.num_cache_refused += not may_use_cache

    def status(self) -> list[BeginningStatus]:
        return [_status(name, source) for name, source in self._sources.items()]


def pieces_of(messages: Sequence[ChatMessage]) -> Iterator[Piece]:
    """Of the beginning, as far as it is looked at."""
    num_pieces = num_chars = 0
    for index, message in enumerate(messages):
        line = 0
        for text in _texts(message.content):
            for row in text[: MAX_CHARS - num_chars].split("\n"):
                line += 1
                for part in _SENTENCE.split(row) if len(row) > LONG_LINE else (row,):
                    yield Piece(index, message.role, line, part)
                    num_pieces += 1
                    num_chars += len(part) + 1
                    if num_pieces >= MAX_PIECES or num_chars >= MAX_CHARS:
                        return


def mask_of(text: str) -> str:
    """Nothing in it differs between two readings of a clock, a counter or a checksum. It can be written as UTF-8."""
    masked = _NAME.sub("@", _VARIABLE.sub("#", text.strip()))[:MAX_MASK]
    return masked.encode("utf-8", "replace").decode()


def _texts(content: str | Sequence[Mapping[str, object]] | None) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        yield from (text for part in content or () if isinstance(text := part.get("text"), str))


def _compare(known: _Source, pieces: Sequence[Piece], digests: Sequence[int], *, is_private: bool) -> None:
    old = known.digests
    first = next((i for i, (a, b) in enumerate(zip(old, digests, strict=False)) if a != b), None)
    if first is None:
        return  # one continues the other
    before = Counter(old[first:])
    lost = 0
    for piece, digest in zip(pieces[first:], digests[first:], strict=True):
        if before[digest] > 0:
            before[digest] -= 1
            lost += len(piece.text) + 1
    if lost < MIN_LOST_CHARS:
        return
    here = pieces[first]
    was_there = digests[first] in old[first + 1 :]
    if was_there and here.message > 0:
        known.num_shortened += 1
        known.lost_chars_shortened += lost
        return
    key = (here.message, here.line)
    if key not in known.places and len(known.places) >= MAX_PLACES:
        return
    place = known.places.setdefault(key, _Place())
    place.num_changes += 1
    place.lost_chars += lost
    place.num_moves += was_there
    place.role = here.role
    is_told = here.role in ("system", "developer") or (here.message == 0 and here.role != BARE)
    if is_private or not is_told:
        return
    mask = mask_of(here.text)
    digest = hash(mask)
    place.mask = mask if digest == place.mask_digest and re.search("[#@]", mask) else None
    place.mask_digest = digest


def _status(name: str, source: _Source) -> BeginningStatus:
    lines = [
        ChangingLine(
            message=message,
            role=place.role,
            line=line,
            mask=place.mask,
            num_changes=place.num_changes,
            num_lost_chars=place.lost_chars // place.num_changes,
            num_moves=place.num_moves,
        )
        for (message, line), place in source.places.items()
    ]
    return BeginningStatus(
        source=name,
        num_prompts=source.num_prompts,
        num_shortened=source.num_shortened,
        num_lost_chars_shortened=source.lost_chars_shortened // max(1, source.num_shortened),
        num_cache_refused=source.num_cache_refused,
        lines=sorted(lines, key=lambda line: -line.num_changes),
    )
