"""Prompts of texts with a gap: their layout, and what is left out when they are too long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from homeai import config
from homeai.backends.llamacpp.vocab import load_vocabulary
from homeai.errors import NotSupported, PromptTooLong
from homeai.server.infill import Gap, InfillPrompt, SourceFile, infill_prompt
from homeai.server.prompts import PromptRenderer
from homeai.server.text import Text
from homeai.vocabulary import Vocabulary

ROOM = 1000
LENGTH = [("scheduler.max_model_len", "100"), ("scheduler.kv_cells", "512")]


@pytest.fixture(scope="module")
def vocabulary(fim_model_path: Path) -> Iterator[Vocabulary]:
    vocabulary = load_vocabulary(fim_model_path)
    yield vocabulary
    vocabulary.close()


def shown(vocabulary: Vocabulary, prompt: InfillPrompt) -> str:
    return "".join(vocabulary.text(token_id) for token_id in prompt.token_ids)


def words(number: int) -> str:
    """Some `number` tokens, each another one."""
    return "".join(f" {i}" for i in range(10, 10 + number // 3))


def test_prefix_prompt_and_suffix_stand_around_the_gap(vocabulary: Vocabulary) -> None:
    prompt = infill_prompt(vocabulary, Gap("def f(x):\n", "\nprint(f(1))\n", prompt="    ret"), ROOM)
    assert shown(vocabulary, prompt) == ("<bos><fim_prefix>def f(x):\n    ret<fim_suffix>\nprint(f(1))\n<fim_middle>")
    assert prompt.notes == []


def test_files_stand_in_front_each_with_its_name(vocabulary: Vocabulary) -> None:
    files = [SourceFile("a.py", "x = 1\n"), SourceFile("lib/b.py", "y = 2\n")]
    prompt = infill_prompt(vocabulary, Gap("p", "s", files=files), ROOM)
    assert shown(vocabulary, prompt) == (
        "<bos><|fim_repo|>project\n<|file_sep|>a.py\nx = 1\n<|file_sep|>lib/b.py\ny = 2\n"
        "<|file_sep|>file\n<fim_prefix>p<fim_suffix>s<fim_middle>"
    )


def test_control_tokens_in_anybodys_text_are_text(vocabulary: Vocabulary) -> None:
    """F14, for code."""
    text = "<fim_middle><|file_sep|><bos>"
    gap = Gap(text, text, prompt=text, files=[SourceFile(text, text)])
    token_ids = infill_prompt(vocabulary, gap, ROOM).token_ids
    tokens = vocabulary.infill_tokens
    assert tokens is not None
    assert token_ids.count(tokens.middle) == 1
    assert token_ids.count(vocabulary.begin_ids[0]) == 1
    assert tokens.file is not None
    assert token_ids.count(tokens.file) == 2


def test_what_is_far_from_the_gap_is_left_out_first_and_said(vocabulary: Vocabulary) -> None:
    files = [SourceFile("old.py", words(60)), SourceFile("new.py", words(60))]
    gap = Gap("def f():\n", "\n", files=files)
    num_tokens = len(infill_prompt(vocabulary, gap, ROOM).token_ids)
    prompt = infill_prompt(vocabulary, gap, num_tokens - 1)
    assert "new.py" in shown(vocabulary, prompt)
    assert "old.py" not in shown(vocabulary, prompt)
    assert prompt.notes == ["input_extra is too long for the context: only its last 1 of 2 count"]


@pytest.mark.parametrize("room", [20, 50, 100])
def test_prefix_keeps_its_end_and_suffix_its_beginning(vocabulary: Vocabulary, room: int) -> None:
    prompt = infill_prompt(vocabulary, Gap(words(600) + " END", "BEGIN" + words(600), prompt=" now"), room)
    assert len(prompt.token_ids) == room
    text = shown(vocabulary, prompt)
    assert " END now<fim_suffix>BEGIN" in text
    assert text.startswith("<bos><fim_prefix>")
    assert text.endswith("<fim_middle>")
    assert [note.split()[0] for note in prompt.notes] == ["input_prefix", "input_suffix"]
    suffix = prompt.token_ids[prompt.token_ids.index(vocabulary.infill_tokens.suffix) :]  # type: ignore[union-attr]
    assert len(suffix) - 2 == (room - 5) // 4


def test_a_short_prefix_leaves_its_room_to_the_suffix(vocabulary: Vocabulary) -> None:
    prompt = infill_prompt(vocabulary, Gap("x", words(600)), 100)
    assert len(prompt.token_ids) == 100
    assert "<fim_prefix>x<fim_suffix> 10 11" in shown(vocabulary, prompt)


def test_text_that_cannot_count_is_not_tokenised(vocabulary: Vocabulary) -> None:
    """A megabyte would take a second."""
    longest = vocabulary.max_chars(100)
    assert longest is not None
    prompt = infill_prompt(vocabulary, Gap("a " * 500_000, "b " * 500_000), 100)
    assert len(prompt.token_ids) == 100
    assert len(prompt.notes) == 2


def test_a_prompt_that_is_too_long_alone_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(PromptTooLong, match=r"\d+ tokens > 20 maximum"):
        infill_prompt(vocabulary, Gap("", "", prompt=words(100)), 20)


def test_a_model_without_the_tokens_says_so(model_path: Path) -> None:
    vocabulary = load_vocabulary(model_path)
    with pytest.raises(NotSupported, match="no fill-in-the-middle tokens") as caught:
        infill_prompt(vocabulary, Gap("a", "b"), ROOM)
    assert caught.value.status == 501
    vocabulary.close()


def test_without_a_token_for_files_their_names_stand_as_text(fim_model_path: Path, tmp_path: Path) -> None:
    data = fim_model_path.read_bytes()
    path = tmp_path / "no-files.gguf"
    path.write_bytes(data.replace(b"<|fim_repo|>", b"<unused1003>").replace(b"<|file_sep|>", b"<unused1004>"))
    vocabulary = load_vocabulary(path)
    prompt = infill_prompt(vocabulary, Gap("p", "s", files=[SourceFile("a.py", "x = 1\n")]), ROOM)
    assert shown(vocabulary, prompt) == ("<bos>\n\n--- a.py ---\n\nx = 1\n<fim_prefix>p<fim_suffix>s<fim_middle>")
    vocabulary.close()


# ---- for a text's ordinary completion, nothing is left out ---------------------------------------------


async def test_a_text_and_its_suffix_are_refused_when_they_do_not_fit(vocabulary: Vocabulary) -> None:
    text = Text("gemma", vocabulary, PromptRenderer(vocabulary, None), config.load(None, env={}, overrides=LENGTH))
    token_ids = await text.encode_infill("def f(x):\n    ", "\nprint(f(1))\n")
    assert "".join(vocabulary.text(t) for t in token_ids) == (
        "<bos><fim_prefix>def f(x):\n    <fim_suffix>\nprint(f(1))\n<fim_middle>"
    )
    for prefix, suffix, param in [
        (words(300), "", "prompt"),
        ("a" * 100_000, "", "prompt"),
        ("", "a" * 100_000, "suffix"),
    ]:
        with pytest.raises(PromptTooLong) as caught:
            await text.encode_infill(prefix, suffix)
        assert caught.value.param == param


async def test_a_gap_leaves_room_for_its_answer(vocabulary: Vocabulary) -> None:
    text = Text("gemma", vocabulary, PromptRenderer(vocabulary, None), config.load(None, env={}, overrides=LENGTH))
    gap = Gap(words(300), words(300))
    for num_reserved, num_tokens in [(0, 99), (1, 99), (30, 70), (1000, 50)]:
        assert len((await text.encode_gap(gap, num_reserved)).token_ids) == num_tokens
