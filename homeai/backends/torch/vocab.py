"""The tokenizer of a model's folder (`tokenizer.json`), read by the `tokenizers` library. No torch here.

A token's bytes are worked out from its text in the vocabulary, not by decoding: a token may be half a character.
There are two ways in which vocabularies write bytes, told by the decoder: every byte as a printable character (GPT-2,
Llama 3, Qwen), or text as it is with "▁" for a blank and `<0x0A>` for a byte (sentencepiece: Gemma, Mistral).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec
from tokenizers import Tokenizer

from homeai.backends.torch.folder import ModelFolder
from homeai.errors import ModelLoadError
from homeai.vocabulary import InfillTokens, Vocabulary

BLANK: Final = "▁"
MAX_NFC_SHRINKING: Final = 3  # bytes into one: three Hangul letters become a syllable
KEEPS_TEXT: Final = frozenset({"Sequence", "Replace", "Prepend"})
TURN_ENDS: Final = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "</s>")
INFILL: Final = (  # names of prefix, suffix, middle, repository and file, as llama.cpp knows them
    ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<PRE>", "<|code_prefix|>"),
    ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<SUF>", "<|code_suffix|>"),
    ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<MID>", "<|code_middle|>"),
    ("<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<fim-repo>", "<reponame>"),
    ("<|file_sep|>", "<file_sep>"),
)

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")


def load_vocabulary(path: Path) -> Vocabulary:
    """Takes about as long as parsing 30 MB of JSON. Raises `ModelLoadError`."""
    folder = ModelFolder(path)
    return Vocabulary(
        FolderVocab(folder),
        name=path.name,
        n_ctx_train=folder.n_ctx_train,
        card=folder.card(),
        chat_template=folder.chat_template,
    )


class _Part(msgspec.Struct):
    """A normalizer or decoder, or a sequence of them."""

    type: str = ""
    normalizers: list[_Part] = []
    decoders: list[_Part] = []

    def types(self) -> Iterator[str]:
        yield self.type
        for part in (*self.normalizers, *self.decoders):
            yield from part.types()


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    unk_token: str | None = None
    byte_fallback: bool = False


class _Description(msgspec.Struct):
    """What of `tokenizer.json` is not asked of the library."""

    model: _Model
    added_tokens: list[_Added] = []
    normalizer: _Part | None = None
    decoder: _Part | None = None


class FolderVocab:
    """The `Vocab` of a model's folder."""

    def __init__(self, folder: ModelFolder) -> None:
        self._path = folder.path / "tokenizer.json"
        if not self._path.is_file():
            raise ModelLoadError(
                f"cannot load {folder.path.name}: {self._path} does not exist; a tokenizer in another form "
                "(tokenizer.model, tekken.json) has to be converted first"
            )
        self._tokenizer = _open(self._path)
        description = _described(self._path)
        decoders = set(description.decoder.types()) if description.decoder else set()
        self._is_byte_level = "ByteLevel" in decoders
        self._has_byte_tokens = description.model.byte_fallback
        normalizers = set(description.normalizer.types()) if description.normalizer else set()
        self._shrinking = _shrinking(normalizers) if self._is_byte_level or self._has_byte_tokens else None
        self.n_tokens = folder.n_vocab or self._tokenizer.get_vocab_size()
        self._added = {added.id: added.content for added in description.added_tokens if added.id < self.n_tokens}
        self.bos, self.add_bos = self._begin(folder)
        eos = self._id(folder.named_text("eos_token"))
        named = {i for i in (eos, *folder.named_ids("eos_token_id")) if i is not None and 0 <= i < self.n_tokens}
        self._ends = frozenset(named.union(i for i in map(self._id, TURN_ENDS) if i in self._added))
        self.eos = eos if eos is not None else min(named, default=-1)
        self._named = self._ends.union(added.id for added in description.added_tokens if added.special)
        unknown = self._id(description.model.unk_token)  # which a text may well become
        self._control = self._named | (set() if unknown is None else {unknown})
        self.special_ids = sorted(i for i in {*self._added, *self._control} if i < self.n_tokens)

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        string = text.decode("utf-8", "replace")
        ids = _encoded(self._tokenizer, string, add_special=add_special)
        if parse_special or self._named.isdisjoint(_encoded(self._tokenizer, string) if add_special else ids):
            return ids
        return _encoded(self._literal, string, add_special=add_special)

    @cached_property
    def _literal(self) -> Tokenizer:
        """One to which the names of control tokens are ordinary text: `escape` leaves it little to do."""
        tokenizer = _open(self._path)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def piece(self, token_id: int, *, special: bool) -> bytes:
        if not special and self.is_control(token_id):
            return b""
        if (added := self._added.get(token_id)) is not None:
            return added.encode() if self._is_byte_level else added.replace(BLANK, " ").encode()
        text = self._tokenizer.id_to_token(token_id)
        return self._bytes(text) if text is not None else f"[PAD{token_id}]".encode()

    def _bytes(self, text: str) -> bytes:
        if self._is_byte_level:
            return bytes(map(BYTES.__getitem__, text)) if BYTES.keys() >= set(text) else text.encode()
        if self._has_byte_tokens and (byte := _BYTE.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        return text.replace(BLANK, " ").encode()

    def pieces(self) -> Iterable[tuple[bytes, bool]]:
        for token_id in range(self.n_tokens):
            yield self.piece(token_id, special=True), self.is_control(token_id)

    def is_control(self, token_id: int) -> bool:
        """Rows of logits that stand for no token count too."""
        return token_id in self._control or self._tokenizer.id_to_token(token_id) is None

    def is_user_defined(self, token_id: int) -> bool:
        return token_id in self._added and token_id not in self._control

    def end_token_ids(self) -> frozenset[int]:
        """What the folder names, and what ends a turn in most families: `generation_config.json` often lacks it."""
        return self._ends

    def infill_tokens(self) -> InfillTokens | None:
        prefix, suffix, middle, repo, file = (
            next((i for i in map(self._id, names) if i is not None), None) for names in INFILL
        )
        if prefix is None or suffix is None or middle is None:
            return None
        return InfillTokens(prefix, suffix, middle, repo, file)

    def max_token_bytes(self) -> int | None:
        if self._shrinking is None:
            return None
        longest = max(len(text) if self._is_byte_level else len(text.encode()) for text in self._tokenizer.get_vocab())
        longest_added = max((len(text.encode()) for text in self._added.values()), default=0)
        return max(longest, longest_added) * self._shrinking

    def _begin(self, folder: ModelFolder) -> tuple[int, bool]:
        """BOS, and whether prompts begin with it: as the settings say, else as `tokenizer.json` does it."""
        first = _encoded(self._tokenizer, "", add_special=True)[:1]
        bos = self._id(folder.named_text("bos_token"))
        if bos is None:
            return (first[0], True) if first else (-1, False)
        stated = folder.tokenizer_config.get("add_bos_token")
        return bos, stated if isinstance(stated, bool) else first == [bos]

    def _id(self, text: str | None) -> int | None:
        token_id: int | None = self._tokenizer.token_to_id(text) if text else None
        return token_id if token_id is not None and token_id < self.n_tokens else None


def _open(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ModelLoadError(f"cannot load {path.parent.name}: {path} is not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _described(path: Path) -> _Description:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Description)
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"cannot load {path.parent.name}: {path} is not a tokenizer: {error}") from None


def _encoded(tokenizer: Tokenizer, text: str, *, add_special: bool = False) -> list[int]:
    """As a batch: that releases the interpreter lock."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
    ids: list[int] = encoding.ids
    return ids


def _shrinking(normalizers: set[str]) -> int | None:
    """How many bytes of a text may become one before it is tokenised; None where that is not known."""
    if normalizers <= KEEPS_TEXT:
        return 1
    return MAX_NFC_SHRINKING if normalizers <= {*KEEPS_TEXT, "NFC"} else None


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's way to write a byte: as itself where that is printable, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTES: Final = _bytes_of_characters()
