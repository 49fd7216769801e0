"""A text with a gap → the prompt that a model trained to fill gaps expects (fill-in-the-middle).

    [BOS] [REPO]project [FILE]name text … [FILE]name [PREFIX]before the gap, prompt [SUFFIX]after the gap [MIDDLE]

REPO and FILE only where files are sent along and the vocabulary has them: the layout of Qwen2.5-Coder's paper,
which llama-server's `/infill` uses too. What people wrote cannot become a control token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from homeai.errors import NotSupported, PromptTooLong

PROJECT: Final = "project\n"
CURRENT_FILE: Final = "file\n"
NO_FILE_TOKEN: Final = "\n\n--- {} ---\n\n"
SUFFIX_SHARE: Final = 4  # of what is left of the room, a quarter belongs to what follows the gap


class InfillTokens(Protocol):
    """Control tokens; `repo` and `file` where the vocabulary has them."""

    @property
    def prefix(self) -> int: ...

    @property
    def suffix(self) -> int: ...

    @property
    def middle(self) -> int: ...

    @property
    def repo(self) -> int | None: ...

    @property
    def file(self) -> int | None: ...


class Tokenizer(Protocol):
    """What a prompt with a gap needs of the vocabulary."""

    begin_ids: list[int]

    @property
    def infill_tokens(self) -> InfillTokens | None: ...

    def encode_part(self, text: str, *, goes_on: bool = False) -> list[int]: ...

    def max_chars(self, num_tokens: int) -> int | None: ...


class SourceFile(NamedTuple):
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """`prompt` is the beginning of what fills the gap. `files`, the most important last, None for none."""

    prefix: str
    suffix: str
    prompt: str = ""
    files: Sequence[SourceFile] | None = None

    @property
    def num_chars(self) -> int:
        files = sum(len(file.name) + len(file.text) for file in self.files or ())
        return len(self.prefix) + len(self.suffix) + len(self.prompt) + files


class InfillPrompt(NamedTuple):
    """`notes` say what was left out to make it fit."""

    token_ids: list[int]
    notes: list[str]


def infill_prompt(tokenizer: Tokenizer, gap: Gap, room: int) -> InfillPrompt:
    """At most `room` tokens.

    What does not fit is left out where it is farthest from the gap: first whole files, from the first one on, then
    the beginning of the prefix and the end of the suffix, which keeps a quarter if it needs that. Raises
    `NotSupported` for a model that fills no gaps, and `PromptTooLong` when the prompt alone is longer than the room.
    """
    tokens = tokenizer.infill_tokens
    if tokens is None:
        raise NotSupported(
            "this model does not fill gaps: it has no fill-in-the-middle tokens (prefix, suffix, middle)",
            param="suffix",
        )
    notes: list[str] = []
    prompt = tokenizer.encode_part(gap.prompt, goes_on=True)
    begin, end = tokenizer.begin_ids, [tokens.middle]
    left = room - len(begin) - len(prompt) - 3
    if left < 0:
        raise PromptTooLong(room - left, room, param="prompt")

    prefix_text, suffix_text = _near(tokenizer, gap, left)
    prefix, suffix = tokenizer.encode_part(prefix_text), tokenizer.encode_part(suffix_text, goes_on=True)
    num_suffix = min(len(suffix), max(left // SUFFIX_SHARE, left - len(prefix)))
    num_prefix = min(len(prefix), left - num_suffix)
    if num_prefix < len(prefix) or len(prefix_text) < len(gap.prefix):
        notes.append(f"input_prefix is too long for the context: only its last {num_prefix} tokens count")
    if num_suffix < len(suffix) or len(suffix_text) < len(gap.suffix):
        notes.append(f"input_suffix is too long for the context: only its first {num_suffix} tokens count")

    files: list[int] = []
    if gap.files is not None:
        files, num_kept = _files(tokenizer, tokens, gap.files, left - num_prefix - num_suffix)
        if num_kept < len(gap.files):
            notes.append(f"input_extra is too long for the context: only its last {num_kept} of {len(gap.files)} count")
    near = [tokens.prefix, *prefix[len(prefix) - num_prefix :], *prompt, tokens.suffix, *suffix[:num_suffix]]
    return InfillPrompt(begin + files + near + end, notes)


def _near(tokenizer: Tokenizer, gap: Gap, room: int) -> tuple[str, str]:
    """Prefix and suffix as far from the gap as there can be room for: more need not be tokenised."""
    num_chars = tokenizer.max_chars(room)
    if num_chars is None:
        return gap.prefix, gap.suffix
    return gap.prefix[max(0, len(gap.prefix) - num_chars) :], gap.suffix[:num_chars]


def _files(tokenizer: Tokenizer, tokens: InfillTokens, files: Sequence[SourceFile], room: int) -> tuple[list[int], int]:
    """The head of the prompt: those of the last files that fit, and their number."""
    head = [] if tokens.repo is None else [tokens.repo, *tokenizer.encode_part(PROJECT)]
    tail = [] if tokens.file is None else [tokens.file, *tokenizer.encode_part(CURRENT_FILE)]
    left = room - len(head) - len(tail)
    if left < 0:
        return [], 0
    kept: list[list[int]] = []
    for file in reversed(files):
        num_chars = tokenizer.max_chars(left)
        if num_chars is not None and len(file.text) > num_chars:
            break  # it cannot fit, and need not be tokenised
        token_ids = _file(tokenizer, tokens, file)
        if len(token_ids) > left:
            break
        left -= len(token_ids)
        kept.append(token_ids)
    return head + [token_id for file in reversed(kept) for token_id in file] + tail, len(kept)


def _file(tokenizer: Tokenizer, tokens: InfillTokens, file: SourceFile) -> list[int]:
    if tokens.file is None:
        return tokenizer.encode_part(NO_FILE_TOKEN.format(file.name)) + tokenizer.encode_part(file.text, goes_on=True)
    return [tokens.file, *tokenizer.encode_part(f"{file.name}\n{file.text}")]
