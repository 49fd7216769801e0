"""llguidance's C interface, which its Python package's library exports: what a grammar allows next, as bits.

Its Python classes would hold the interpreter lock while they read a vocabulary, half a second to a second for 262,144
tokens, and every stream would stand still; through ctypes nothing here holds it. Handles are freed with the objects
that own them, a tokenizer after the last of its matchers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import byref, c_bool, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p, string_at
from functools import cache
from typing import Final

import llguidance
import numpy as np
import numpy.typing as npt

from homeai.errors import GrammarFailed
from homeai.vocabulary import Vocab

SPECIAL: Final = b"\xff"  # begins the text of a token that is not text
ERROR_BYTES: Final = 1024
ERROR_CHARS: Final = 300
LINE_FEED: Final = b"\n"

Mask = npt.NDArray[np.uint8]
"""A bit for every token, token 0 the lowest bit of byte 0; as many bytes as whole words of 32 bits have."""

_TokenizeFn = ctypes.CFUNCTYPE(
    c_size_t, c_void_p, ctypes.POINTER(ctypes.c_uint8), c_size_t, ctypes.POINTER(c_uint32), c_size_t
)


class _TokenizerInit(ctypes.Structure):
    """LlgTokenizerInitV2."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("vocab_size", c_uint32),
        ("tok_eos", c_uint32),
        ("token_lens", c_void_p),
        ("token_bytes", c_char_p),
        ("tokenizer_json", c_char_p),
        ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", _TokenizeFn),
        ("use_approximate_greedy_tokenize_fn", c_bool),
        ("tokenize_user_data", c_void_p),
        ("slices", ctypes.POINTER(c_char_p)),
        ("tok_eos_extra", ctypes.POINTER(c_uint32)),
        ("tok_eos_extra_count", c_uint32),
    )


class _MatcherInit(ctypes.Structure):
    """LlgConstraintInit, with its limits; what is 0 there is as llguidance likes it."""

    _fields_ = (
        ("tokenizer", c_void_p),
        ("log_buffer_level", c_uint32),
        ("log_stderr_level", c_uint32),
        ("ff_tokens_ok", c_bool),
        ("backtrack_ok", c_bool),
        ("max_items_in_row", c_size_t),
        ("initial_lexer_fuel", c_uint64),
        ("step_lexer_fuel", c_uint64),
        ("step_max_items", c_size_t),
        ("max_lexer_states", c_size_t),
        ("max_grammar_size", c_size_t),
        ("precompute_large_lexemes", c_bool),
        ("verbose_errors", c_bool),
    )


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(llguidance._lib.__file__)
    matcher = [c_void_p]
    for name, restype, argtypes in (
        ("llg_new_tokenizer_v2", c_void_p, [ctypes.POINTER(_TokenizerInit), c_char_p, c_size_t]),
        ("llg_free_tokenizer", None, [c_void_p]),
        ("llg_tokenize_bytes", c_size_t, [c_void_p, c_char_p, c_size_t, c_void_p, c_size_t]),
        ("llg_constraint_init_set_defaults", None, [ctypes.POINTER(_MatcherInit), c_void_p]),
        ("llg_new_matcher", c_void_p, [ctypes.POINTER(_MatcherInit), c_char_p, c_char_p]),
        ("llg_clone_matcher", c_void_p, matcher),
        ("llg_free_matcher", None, matcher),
        ("llg_matcher_get_error", c_char_p, matcher),
        ("llg_matcher_compute_mask_into", c_int32, [c_void_p, c_void_p, c_size_t]),
        ("llg_matcher_consume_token", c_int32, [c_void_p, c_uint32]),
        ("llg_matcher_validate_tokens", c_int32, [c_void_p, c_void_p, c_size_t]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = restype, argtypes
    return library


class Tokenizer:
    """The vocabulary as llguidance walks it. To make one takes 0.2 s of Python and 0.7 s of one core without it."""

    def __init__(self, vocab: Vocab, end_token_ids: Iterable[int]) -> None:
        """Raises `GrammarFailed` for a vocabulary that llguidance cannot use."""
        self.num_tokens = vocab.n_tokens
        self._vocab = vocab
        self._tokenize = _TokenizeFn(self._tokenize_bytes)  # must outlive the tokenizer
        self._lead = vocab.tokenize(LINE_FEED, add_special=False, parse_special=False)
        pieces = _pieces(vocab)
        lengths = np.fromiter(map(len, pieces), np.uint32, len(pieces))
        end, *other_ends = sorted(end_token_ids) or [vocab.eos]
        init = _TokenizerInit(
            struct_size=ctypes.sizeof(_TokenizerInit),
            vocab_size=len(pieces),
            tok_eos=end,
            token_lens=lengths.ctypes.data,
            token_bytes=b"".join(pieces),
            tokenize_assumes_string=True,
            tokenize_fn=self._tokenize,
            tok_eos_extra=(c_uint32 * len(other_ends))(*other_ends),
            tok_eos_extra_count=len(other_ends),
        )
        error = ctypes.create_string_buffer(ERROR_BYTES)
        self.handle = _library().llg_new_tokenizer_v2(byref(init), error, ERROR_BYTES)
        if not self.handle:
            raise GrammarFailed(f"llguidance cannot use this vocabulary: {_text(error.value)}")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            _library().llg_free_tokenizer(self.handle)

    def tokenize(self, text: bytes) -> list[int]:
        """Tokens that spell `text`, which may begin or end within a character."""
        tokens = np.empty(len(text), np.uint32)
        count = _library().llg_tokenize_bytes(self.handle, text, len(text), tokens.ctypes.data, tokens.size)
        assert count <= tokens.size, f"{count} tokens for {len(text)} bytes"
        return [int(token_id) for token_id in tokens[:count]]

    def _tokenize_bytes(
        self,
        _user_data: object,
        text: ctypes._Pointer[ctypes.c_uint8],
        num_bytes: int,
        tokens: ctypes._Pointer[c_uint32],
        num_tokens: int,
    ) -> int:
        """As the backend would write a text that is forced. It goes on behind another one: vocabularies that put a
        space before every text put it before the line feed here, which is a token of its own in them."""
        ids = self._vocab.tokenize(LINE_FEED + string_at(text, num_bytes), add_special=False, parse_special=False)
        if ids[: len(self._lead)] == self._lead:
            ids = ids[len(self._lead) :]
        else:  # the line feed joined what follows it
            ids = self._vocab.tokenize(string_at(text, num_bytes), add_special=False, parse_special=False)
        for position, token_id in enumerate(ids[:num_tokens]):
            tokens[position] = token_id
        return len(ids)


def _pieces(vocab: Vocab) -> list[bytes]:
    """The bytes of every token, marked where they are not text."""
    return [SPECIAL + piece if is_control else piece for piece, is_control in vocab.pieces()]


class Matcher:
    """A grammar, and where a text stands in it. One thread at a time; clones share what was worked out so far."""

    def __init__(self, tokenizer: Tokenizer, handle: int) -> None:
        self._tokenizer = tokenizer  # freed after its matchers
        self._handle = handle

    @classmethod
    def compile(cls, tokenizer: Tokenizer, source: str) -> Matcher:
        """Milliseconds; up to a second for the largest grammars. Raises `GrammarFailed`."""
        if "\0" in source:  # where C would take it to end
            raise GrammarFailed("there is a NUL character in it")
        init = _MatcherInit()
        _library().llg_constraint_init_set_defaults(byref(init), tokenizer.handle)
        init.log_stderr_level = 0
        init.verbose_errors = False  # else an error repeats the whole text
        kind = b"guidance" if source.lstrip().startswith("{") else b"lark"
        matcher = cls(tokenizer, _library().llg_new_matcher(byref(init), kind, source.encode()))
        if (error := matcher.error) is not None:
            raise GrammarFailed(error)
        return matcher

    def clone(self) -> Matcher:
        return Matcher(self._tokenizer, _library().llg_clone_matcher(self._handle))

    def __del__(self) -> None:
        _library().llg_free_matcher(self._handle)

    @property
    def error(self) -> str | None:
        """Why it will never again allow anything."""
        error = _library().llg_matcher_get_error(self._handle)
        return None if error is None else _text(error)

    def mask(self) -> Mask:
        """The tokens that may come next; end tokens among them when the text is complete. Raises `GrammarFailed`."""
        mask = np.empty(-(-self._tokenizer.num_tokens // 32) * 4, np.uint8)
        if _library().llg_matcher_compute_mask_into(self._handle, mask.ctypes.data, mask.size) != 0:
            raise GrammarFailed(self.error or "no error is told")
        return mask

    def consume(self, token_id: int) -> None:
        """Raises `GrammarFailed` for a token that the mask does not have: the matcher is of no use afterwards."""
        if _library().llg_matcher_consume_token(self._handle, token_id) != 0:
            raise GrammarFailed(self.error or f"token {token_id} is not allowed here")

    def fits(self, token_ids: Sequence[int]) -> bool:
        """Whether all of them may come next, one after the other."""
        tokens = np.array(token_ids, np.uint32)
        count = _library().llg_matcher_validate_tokens(self._handle, tokens.ctypes.data, tokens.size)
        return bool(count == tokens.size)

    def tokenize(self, text: bytes) -> list[int]:
        return self._tokenizer.tokenize(text)


def _text(message: bytes) -> str:
    """The beginning of the first line: the others repeat the grammar, and it may list the vocabulary."""
    return message.decode("utf-8", "replace").split("\n", 1)[0][:ERROR_CHARS]
