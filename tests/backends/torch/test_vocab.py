"""Rules of a folder's vocabulary: on the default model's, where llama.cpp is the reference, and on small ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from homeai.backends.llamacpp.vocab import load_vocabulary as load_gguf
from homeai.backends.torch.folder import ModelFolder
from homeai.backends.torch.vocab import FolderVocab, load_vocabulary
from homeai.errors import GrammarFailed, ModelLoadError
from homeai.sampling.guidance import Matcher
from homeai.sampling.guidance import Tokenizer as GrammarTokenizer
from homeai.vocabulary import Vocabulary

TEXTS = [
    "Hello, world",
    "  two leading blanks, a tab\t and\n\n\nthree line feeds  ",
    "<table><tr><td>1 < 2</td></tr></table> <s>old</s",
    "щёчки 🙂 日本語 👩‍👩‍👧 \u0000 \ufffe ▁",
    "<|im_end|> and <eos> and </think>",
    "",
]


# ---- the default model's ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabulary(torch_path: Path) -> Vocabulary:
    return load_vocabulary(torch_path)


@pytest.fixture(scope="module")
def llama(gguf_path: Path) -> Iterator[Vocabulary]:
    vocabulary = load_gguf(gguf_path)
    yield vocabulary
    vocabulary.close()


def test_vocabulary_describes_the_model_as_llama_cpp_does(vocabulary: Vocabulary, llama: Vocabulary) -> None:
    for said in ("num_tokens", "n_ctx_train", "begin_ids", "bos_text", "eos_text", "end_token_ids", "control_texts"):
        assert getattr(vocabulary, said) == getattr(llama, said), said
    assert vocabulary.max_chars(10) == llama.max_chars(10)
    assert vocabulary.chat_template is None
    assert vocabulary.infill_tokens is None


def test_every_token_has_the_bytes_that_llama_cpp_gives_it(vocabulary: Vocabulary, llama: Vocabulary) -> None:
    ids = range(vocabulary.num_tokens)
    assert [vocabulary.shown(i) for i in ids] == [llama.shown(i) for i in ids]
    assert [vocabulary.piece(i) for i in llama.end_token_ids] == [b""] * 3


@given(st.one_of(st.text(), st.text("ab \n\t<>/▁'0é🙂"), st.sampled_from(TEXTS)))
@settings(max_examples=150, deadline=None)
def test_text_has_the_tokens_that_llama_cpp_gives_it(vocabulary: Vocabulary, llama: Vocabulary, text: str) -> None:
    escaped = vocabulary.escape(text)
    assert escaped == llama.escape(text)
    assert vocabulary.encode_prompt(text) == llama.encode_prompt(text)
    turn = f"<bos><start_of_turn>user\n{escaped}<end_of_turn>\n"
    assert vocabulary.encode(turn) == llama.encode(turn)


def test_card_describes_the_model(vocabulary: Vocabulary, torch_path: Path) -> None:
    card = vocabulary.card
    assert (card.architecture, card.quantization, card.num_params) == ("gemma3_text", "BF16", 268_098_176)
    assert card.size_bytes == (torch_path / "model.safetensors").stat().st_size
    assert card.metadata["gemma3_text.context_length"] == 32_768
    assert len(card.digest) == 64


# ---- small ones ---------------------------------------------------------------------------------------

MARKERS = ["<|begin|>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """As GPT-2's, Llama 3's and Qwen's: every byte a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=MARKERS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def with_blanks() -> Tokenizer:
    """As Llama 2's: a blank before every text, bytes as tokens of their own."""
    names = ["<unk>", *MARKERS, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz<>|_/", "▁a"]
    merges = [("▁", "a")]
    model = models.BPE({name: i for i, name in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in MARKERS])
    return tokenizer


def folder(path: Path, tokenizer: Tokenizer, config: dict[str, Any] | None = None, **files: object) -> Path:
    path.mkdir(exist_ok=True)
    size = tokenizer.get_vocab_size() + 3  # rows of logits beyond the vocabulary
    save_file({"model.embed_tokens.weight": np.zeros((size, 4), np.float16)}, path / "model.safetensors")
    named = {"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>"}}
    written = {
        "config": {"model_type": "llama", "vocab_size": size, "max_position_embeddings": 128, **(config or {})},
        "tokenizer_config": named,
        **files,
    }
    for name, tree in written.items():
        (path / f"{name}.json").write_text(json.dumps(tree))
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(params=[byte_level, with_blanks])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Vocabulary:
    tokenizer = request.param()
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    begin = ("<|begin|>", tokenizer.token_to_id("<|begin|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[begin])
    return load_vocabulary(folder(tmp_path / "Small-1.5b", tokenizer))


def spelt(vocabulary: Vocabulary, token_ids: list[int]) -> str:
    return b"".join(map(vocabulary.piece, token_ids)).decode()


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_spell_the_text(small: Vocabulary, text: str) -> None:
    token_ids = small.encode_prompt(text)
    assert token_ids[0] == small.begin_ids[0]
    adds_space = spelt(small, small.encode_part("a")) == " a"
    blank = " " if adds_space else "▁"  # to sentencepiece it is one
    assert spelt(small, token_ids) == " " * (adds_space and text != "") + text.replace("▁", blank)


def test_characters_may_be_cut_between_tokens(small: Vocabulary) -> None:
    pieces = [small.piece(i) for i in small.encode_prompt("\ue123")]
    assert b"".join(pieces).strip() == "\ue123".encode()
    assert len(pieces[-1]) == 1


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b", "<think>", "<|im_<|im_end|>end|>"])
def test_text_from_outside_never_becomes_a_control_token(small: Vocabulary, text: str) -> None:
    special = {small.control_id(name) for name in MARKERS} | {small.encode("<think>")[-1]}
    for token_ids in (
        small.encode_prompt(text)[1:],
        small.encode(f"<|im_start|>{small.escape(text)}")[2:],
        small.encode_part(text, goes_on=True),
    ):
        assert special.isdisjoint(token_ids)
        assert spelt(small, token_ids).strip() == text


def test_template_goes_on_after_broken_text(small: Vocabulary) -> None:
    token_ids = small.encode(f"<|im_start|>{small.escape('x<|im_end|>')}<|im_end|>")
    assert [small.shown(i) for i in (token_ids[1], token_ids[-1])] == [b"<|im_start|>", b"<|im_end|>"]
    assert token_ids[-1] in small.end_token_ids


def test_what_is_only_tokenised_keeps_control_texts_as_text(small: Vocabulary) -> None:
    token_ids = small.encode_input("a<|im_end|>")
    assert small.control_id("<|im_end|>") not in token_ids
    assert spelt(small, token_ids).strip() == "a<|im_end|>"


def test_rows_beyond_the_vocabulary_are_no_text(small: Vocabulary) -> None:
    last = small.num_tokens - 1
    assert small.piece(last) == b""
    assert small.shown(last) == f"[PAD{last}]".encode()


@given(text=st.text(max_size=30))
@settings(max_examples=60, deadline=None)
def test_text_never_takes_fewer_tokens_than_its_size_says(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    vocabulary = load_vocabulary(folder(tmp_path_factory.getbasetemp() / "nfc", byte_level()))
    assert vocabulary.min_tokens(text) <= len(vocabulary.encode_prompt(text))


def test_model_is_called_like_its_folder(small: Vocabulary) -> None:
    assert (small.name, small.n_ctx_train) == ("Small-1.5b", 128)


# ---- what the files say -------------------------------------------------------------------------------


def test_begin_token_is_put_where_the_files_say_so(tmp_path: Path) -> None:
    silent = folder(tmp_path / "silent", byte_level())
    assert load_vocabulary(silent).begin_ids == []
    said = folder(tmp_path / "said", byte_level(), tokenizer_config={"bos_token": "<|begin|>", "add_bos_token": True})
    vocabulary = load_vocabulary(said)
    assert vocabulary.encode_prompt("a")[0] == vocabulary.control_id("<|begin|>")


def test_every_end_that_is_named_ends(tmp_path: Path) -> None:
    tokenizer = byte_level()
    path = folder(tmp_path / "m", tokenizer, {"eos_token_id": 2}, generation_config={"eos_token_id": [0, 1]})
    assert load_vocabulary(path).end_token_ids == {0, 1, 2}


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config": {"chat_template": "A"}}, "A"),
        (
            {
                "tokenizer_config": {
                    "chat_template": [{"name": "x", "template": "B"}, {"name": "default", "template": "A"}]
                }
            },
            "A",
        ),
        ({"chat_template": {"chat_template": "A"}}, "A"),
        ({}, None),
    ],
)
def test_template_is_found_where_it_may_be(tmp_path: Path, files: dict[str, Any], template: str | None) -> None:
    path = folder(tmp_path / "m", byte_level(), **files)
    assert load_vocabulary(path).chat_template == template
    (path / "chat_template.jinja").write_text("its own file")
    assert load_vocabulary(path).chat_template == "its own file"


def test_gaps_are_filled_where_the_vocabulary_can(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"])
    tokens = load_vocabulary(folder(tmp_path / "m", tokenizer)).infill_tokens
    assert tokens is not None
    assert tokens.repo is None
    assert tokenizer.id_to_token(tokens.middle) == "<|fim_middle|>"
    assert tokens.file == tokenizer.token_to_id("<|file_sep|>")


def test_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", byte_level())
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"cannot load m: .*tokenizer\.json is not a tokenizer"):
        load_vocabulary(path)
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json does not exist; a tokenizer in another form"):
        load_vocabulary(path)


# ---- grammars -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level, with_blanks])
def test_grammar_allows_what_continues_its_text(tmp_path: Path, make: Any) -> None:
    vocab = FolderVocab(ModelFolder(folder(tmp_path / "m", make())))
    tokenizer = GrammarTokenizer(vocab, vocab.end_token_ids())
    matcher = Matcher.compile(tokenizer, 'start: "ab" /[xy]/')
    text = b""
    while not text.endswith((b"x", b"y")):
        allowed = np.flatnonzero(np.unpackbits(matcher.mask(), count=vocab.n_tokens, bitorder="little"))
        pieces = {int(i): vocab.piece(int(i), special=False) for i in allowed}
        assert all(b"abx".startswith(text + piece) or b"aby".startswith(text + piece) for piece in pieces.values())
        token_id = max(pieces)
        matcher.consume(token_id)
        text += pieces[token_id]
    end = vocab.tokenize(b"<|im_end|>", add_special=False, parse_special=True)[-1]
    assert np.unpackbits(matcher.mask(), bitorder="little")[end]
    with pytest.raises(GrammarFailed):
        matcher.consume(vocab.tokenize(b"b", add_special=False, parse_special=False)[-1])
