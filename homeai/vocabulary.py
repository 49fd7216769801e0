"""Text ↔ token ids for the front end, whatever the model's files are like.

Text that people send can never become a control token. `escape` puts a break mark after the first character
of every special text in it ("<" BREAK "|im_end|>"); templates then work on nearly the original text, and the
tokenizer sees the pieces between the marks one by one, so that no special token matches across a mark. Text
without special texts gets no mark and is tokenised exactly as the backend would.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from homeai.model_card import ModelCard

BREAK: Final = "\ufdd0"  # a noncharacter: Unicode keeps it for a program's own use

_NOT_TEXT: Final = re.compile("[\ud800-\udfff\ufdd0-\ufdef]")  # lone surrogates, noncharacters
_HTML_TAG: Final = re.compile(
    r"</?(?:a|b|blockquote|body|caption|code|div|em|footer|h[1-6]|html|i|iframe|img|li|ol|p|pre|s|span|strong|sub"
    r"|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)


class InfillTokens(NamedTuple):
    """The control tokens around a text with a gap in it. `repo` and `file`, where the vocabulary has them, begin a
    project and each of its files."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    file: int | None


class Vocab(Protocol):
    """A backend's own tokenizer. May be used from several threads.

    n_tokens: ids are 0 … n_tokens - 1, as many as a row of logits has. bos, eos: -1 where there is none.
    add_bos: a prompt begins with bos. special_ids: tokens that are more than ordinary text.
    """

    @property
    def n_tokens(self) -> int: ...

    @property
    def bos(self) -> int: ...

    @property
    def eos(self) -> int: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def special_ids(self) -> Sequence[int]: ...

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """`parse_special` turns "<|im_end|>" into its control token: only for text that we wrote."""
        ...

    def piece(self, token_id: int, *, special: bool) -> bytes:
        """The bytes a token stands for; control tokens are empty unless `special`."""
        ...

    def pieces(self) -> Iterable[tuple[bytes, bool]]:
        """Every token's bytes, with the names of control tokens, and whether it is one."""
        ...

    def is_control(self, token_id: int) -> bool: ...

    def is_user_defined(self, token_id: int) -> bool:
        """Found in a text before it is tokenised, and text itself."""
        ...

    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends a generation."""
        ...

    def infill_tokens(self) -> InfillTokens | None:
        """None for a model that was not trained to fill a gap."""
        ...

    def max_token_bytes(self) -> int | None:
        """No token stands for more bytes of text; None for vocabularies that drop or change some of the text."""
        ...


class Vocabulary:
    """The tokenizer of one model. May be used from several threads.

    `control_texts` are the texts that `escape` breaks up: control tokens, and those tokens "defined by the user"
    of the vocabulary (`</think>`, `<start_of_image>`) that are markers rather than runs of blanks or HTML tags.
    `n_ctx_train`: tokens that the model was trained for, 0 if unsaid.
    """

    def __init__(
        self,
        vocab: Vocab,
        *,
        name: str,
        n_ctx_train: int,
        card: ModelCard,
        chat_template: str | None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._vocab = vocab
        self._close = close
        self._pieces: dict[int, bytes] = {}
        self._shown: dict[int, bytes] = {}
        self.name = name
        self.n_ctx_train = n_ctx_train
        self.card = card
        self.chat_template = chat_template
        self.num_tokens = vocab.n_tokens
        self.end_token_ids = vocab.end_token_ids()
        self.infill_tokens = vocab.infill_tokens()
        self.begin_ids = [vocab.bos] if vocab.add_bos else []
        self._max_token_bytes = vocab.max_token_bytes()
        self.bos_text = self.text(vocab.bos) if vocab.bos >= 0 else ""
        self.eos_text = self.text(vocab.eos) if vocab.eos >= 0 else ""
        self.control_texts = frozenset(self._control_texts())
        self._first_of_special = _first_characters(self.control_texts)
        self._beginnings = frozenset(text[:n] for text in self.control_texts for n in range(1, len(text)))
        self._beginning_lengths = range(1, 1 + max(map(len, self._beginnings), default=0))
        self._adds_space = self._starts_with_space()

    def close(self) -> None:
        self._close()

    # ---- ids → text ---------------------------------------------------------------------------------

    def piece(self, token_id: int) -> bytes:
        """The bytes that a token adds to an answer: none for a control token, maybe half a character."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._vocab.piece(token_id, special=False)
        return piece

    def shown(self, token_id: int) -> bytes:
        """The bytes of a token by itself, control tokens too; maybe half a character."""
        shown = self._shown.get(token_id)
        if shown is None:
            shown = self._shown[token_id] = self._vocab.piece(token_id, special=True)
        return shown

    def piece_with(self, markers: Iterable[str]) -> Callable[[int], bytes]:
        """Like `piece`, but these control tokens have their text, for whoever reads answers' structure by them."""
        shown = {token_id: text.encode() for text in markers if (token_id := self.control_id(text)) is not None}
        piece = self.piece
        return (lambda token_id: shown.get(token_id) or piece(token_id)) if shown else piece

    def control_id(self, text: str) -> int | None:
        """The control token that this text is, None for any other text."""
        if text not in self.control_texts:
            return None
        token_ids = self._vocab.tokenize(text.encode(), add_special=False, parse_special=True)
        return token_ids[0] if len(token_ids) == 1 and not self.piece(token_ids[0]) else None

    def text(self, token_id: int) -> str:
        """A token by itself for people to read, control tokens too: for log-probabilities and templates."""
        return self._vocab.piece(token_id, special=True).decode("utf-8", "replace")

    # ---- text → ids ---------------------------------------------------------------------------------

    def escape(self, text: str) -> str:
        """Text from outside, made safe to stand in a prompt; what cannot be text becomes U+FFFD.

        A special text that is only begun where the text ends gets a mark there: what follows may complete it.
        """
        marked = self._first_of_special.sub(rf"\g<0>{BREAK}", _NOT_TEXT.sub("\ufffd", text))
        return marked + BREAK if self._ends_in_beginning(marked) else marked

    def _ends_in_beginning(self, text: str) -> bool:
        return any(text[-length:] in self._beginnings for length in self._beginning_lengths)

    def min_tokens(self, text: str) -> int:
        """Fewer tokens than this cannot hold `text`, which may be escaped. Takes no time: nothing is tokenised."""
        if self._max_token_bytes is None:
            return 0
        num_bytes = len(text.encode("utf-8", "replace")) - len(BREAK.encode()) * text.count(BREAK)
        return -(-num_bytes // self._max_token_bytes)

    def encode(self, rendered: str) -> list[int]:
        """A prompt that we wrote around escaped text: special texts outside of marks become control tokens."""
        return self._with_bos(self._tokenize(rendered, parse_special=True))

    def encode_prompt(self, text: str) -> list[int]:
        """A raw prompt from outside, e.g. of `/v1/completions`: all of it is text, only BOS is added."""
        return self._with_bos(self.encode_part(text))

    def encode_part(self, text: str, *, goes_on: bool = False) -> list[int]:
        """A text from outside that stands somewhere in a prompt. `goes_on`: it is not the beginning of a text."""
        return self._tokenize(BREAK * goes_on + self.escape(text), parse_special=False)

    def encode_parts(self, parts: Sequence[str | int], *, add_special: bool, parse_special: bool) -> list[int]:
        """Texts and token ids from outside, put together. `add_special`: begins like a prompt, if with a text.
        `parse_special`: control tokens in the texts count."""
        token_ids: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, int):
                token_ids.append(part)
            else:
                text = part if parse_special else self.escape(part)
                token_ids += self._tokenize(BREAK * (index > 0) + text, parse_special=parse_special)
        begins_with_text = bool(parts) and isinstance(parts[0], str)
        return self._with_bos(token_ids) if add_special and begins_with_text else token_ids

    def encode_input(self, text: str) -> list[int]:
        """A text to make an embedding of, with what the vocabulary puts around one (BOS; or CLS and SEP)."""
        return self._vocab.tokenize(text.encode("utf-8", "replace"), add_special=True, parse_special=False)

    def max_chars(self, num_tokens: int) -> int | None:
        """No longer text fits so many tokens; None where that is not known."""
        return None if self._max_token_bytes is None else num_tokens * self._max_token_bytes

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        """Begin with BOS where the vocabulary wants one and a template did not write it already."""
        bos = self._vocab.bos
        if not self._vocab.add_bos or token_ids[:1] == [bos]:
            return token_ids
        return [bos, *token_ids]

    def _tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        first, *others = text.encode().split(BREAK.encode())
        token_ids = self._vocab.tokenize(first, add_special=False, parse_special=parse_special)
        for piece in filter(None, others):
            token_ids += self._tokenize_continuation(piece, parse_special=parse_special)
        return token_ids

    def _tokenize_continuation(self, piece: bytes, *, parse_special: bool) -> list[int]:
        """Llama-2-style vocabularies put a space before every text they are given, but this one goes on.

        So give it a line feed to put the space before: in those vocabularies it is a byte that joins nothing.
        """
        if self._adds_space:
            lead = self._vocab.tokenize(b"\n", add_special=False, parse_special=False)
            token_ids = self._vocab.tokenize(b"\n" + piece, add_special=False, parse_special=parse_special)
            if token_ids[: len(lead)] == lead:
                return token_ids[len(lead) :]
            # a special token swallowed the line feed, so the piece begins with one and gets no space either
        return self._vocab.tokenize(piece, add_special=False, parse_special=parse_special)

    # ---- what the vocabulary holds ------------------------------------------------------------------

    def _control_texts(self) -> Iterable[str]:
        for token_id in self._vocab.special_ids:
            text = self.text(token_id)
            if self._vocab.is_control(token_id) or (self._vocab.is_user_defined(token_id) and not _is_ordinary(text)):
                yield text

    def _starts_with_space(self) -> bool:
        token_ids = self._vocab.tokenize(b"a", add_special=False, parse_special=False)
        return self._vocab.piece(token_ids[0], special=True).startswith(b" ") if token_ids else False


def _is_ordinary(text: str) -> bool:
    """Text that people write, given a token of its own: a character, blanks, a word, a plain HTML tag."""
    return len(text) == 1 or text.isspace() or text.isalnum() or _HTML_TAG.fullmatch(text) is not None


def _first_characters(special_texts: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of each special text, wherever it stands.

    Digits stand for any number (`<unused17>`): thousands of texts become a handful, at the price of breaking
    `<unused99999>` too. A text of one character cannot be broken up; no vocabulary has such a control token.
    """
    breakable = [symbols for symbols in map(_symbols, sorted(special_texts)) if len(symbols) > 1]
    branches = [f"{first}(?={_any_of(rests)})" for first, rests in _by_first(breakable).items()]
    return re.compile("|".join(branches) or "(?!)")


def _symbols(text: str) -> list[str]:
    """The text as regex atoms: one per character, or per run of digits."""
    atoms: list[str] = re.findall(r"[0-9]+|[^0-9]", text)
    return ["[0-9]++" if atom.isdigit() else re.escape(atom) for atom in atoms]


def _any_of(sequences: Sequence[list[str]]) -> str:
    """A regex for any of `sequences`, sharing their beginnings so that a text's characters are looked at once."""
    if [] in sequences:
        return ""
    branches = [first + _any_of(rests) for first, rests in _by_first(sequences).items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _by_first(sequences: Iterable[list[str]]) -> dict[str, list[list[str]]]:
    groups: dict[str, list[list[str]]] = defaultdict(list)
    for first, *rest in sequences:
        groups[first].append(rest)
    return groups
