"""Token ids → text deltas of one choice: whole characters, and nothing of a stop string.

The deltas, joined, are the answer; a client that does not stream gets the same text. The answer ends where
the first stop string is complete, whatever tokens it arrives in: in "abcd" with the stops "bcd" and "c" that
is "c", so the answer is "ab".
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

LINE: Final = re.compile(r"\n([ \t]*)([^ \t\n]|\Z)")  # the beginning of one that is not empty


class Delta(NamedTuple):
    """What one step adds. `num_tokens` counts from the start the tokens whose text is out, begun at least.

    A token held back (half a character, maybe a stop string) is not counted yet; end tokens never are.
    """

    text: str
    num_tokens: int


class OutputText:
    """The text of one choice as it grows.

    `num_tokens` is every token taken in, end tokens too: the usage, cut at the token that completed a stop
    string. `stopped` is that string; tokens pushed after it are ignored. `skip_space` leaves out white space at
    the very beginning, which a plain transcript's answer has ("Assistant:" " Paris"). `min_indent` ends the answer
    before a line, but the first, that begins with fewer blanks; `stopped` is "" then.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        stop: Sequence[str] = (),
        *,
        skip_space: bool = False,
        min_indent: int = 0,
    ) -> None:
        self._piece = piece
        self._min_indent = min_indent
        self._skip_space = skip_space
        self._stops = [text for text in stop if text]
        self._first_of_stop = re.compile("|".join({re.escape(text[0]) for text in self._stops}) or "(?!)")
        self.num_tokens = 0
        self.stopped: str | None = None
        self._tail = b""  # the beginning of a character
        self._held = ""  # the beginning of what may become a stop string
        self._num_chars_out = 0
        self._starts: deque[int] = deque()  # of the tokens that are not out: where their text begins
        self._num_tokens_out = 0

    def push(self, token_id: int, is_end: bool) -> Delta:
        """Take in the next token. `is_end`: it ended the generation, so it has no text."""
        if self.stopped is not None:
            return Delta("", self._num_tokens_out)
        self.num_tokens += 1
        if is_end:
            return Delta("", self._num_tokens_out)
        self._starts.append(self._num_chars_out + len(self._held))
        text = self._held + self._decode(self._piece(token_id))
        end = self._end_of_release(text)
        self._held = "" if self.stopped is not None else text[end:]
        return self._release(text[:end])

    def finish(self) -> Delta:
        """The generation is over: what was held back comes out, but no half character."""
        text, self._held, self._tail = self._held, "", b""
        delta = self._release(text)
        if self.stopped is None:
            self._num_tokens_out += len(self._starts)
            self._starts.clear()
        return delta._replace(num_tokens=self._num_tokens_out)

    def _decode(self, piece: bytes) -> str:
        """Whole characters; bytes that cannot be UTF-8 become U+FFFD, an unfinished character waits."""
        data = self._tail + piece
        text, num_consumed = codecs.utf_8_decode(data, "replace", False)
        self._tail = data[num_consumed:]
        return text

    def _end_of_release(self, text: str) -> int:
        """How much of `text` may go out; sets `stopped` when no more than that ever will."""
        end = self._end_before_stop(text) if self._stops else len(text)
        if not self._min_indent:
            return end
        for line in LINE.finditer(text, 0, end):
            if not line[2]:  # it is not known yet how far this line is indented
                return line.start() if self.stopped is None else end
            if len(line[1]) < self._min_indent:
                self.stopped = ""
                return line.start()
        return end

    def _end_before_stop(self, text: str) -> int:
        """How much of `text` may go out: up to a complete stop string, or to the beginning of one at its end."""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _end, start, self.stopped = min(found)
            return start
        for candidate in self._first_of_stop.finditer(text):
            rest = text[candidate.start() :]
            if any(stop.startswith(rest) for stop in self._stops):
                return candidate.start()
        return len(text)

    def _release(self, text: str) -> Delta:
        self._num_chars_out += len(text)
        while self._starts and self._starts[0] < self._num_chars_out:
            self._starts.popleft()
            self._num_tokens_out += 1
        if self._skip_space:
            text = text.lstrip()
            self._skip_space = not text
        return Delta(text, self._num_tokens_out)
