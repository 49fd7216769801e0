"""Between text and tokens: what is refused before it is tokenised, and what the owner should know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from homeai import config
from homeai.backends.llamacpp.vocab import Vocabulary
from homeai.errors import InvalidRequest, PromptTooLong
from homeai.request import SamplingParams
from homeai.server.ask import Ask
from homeai.server.conversation import Chat, ChatMessage
from homeai.server.prompts import PromptRenderer
from homeai.server.text import Text

TEMPLATE = "{% for message in messages %}{{ message.content[:10] }}{% endfor %}"


class CountingVocabulary(Vocabulary):
    """The real one; counts what it tokenises."""

    num_encoded = 0

    def encode(self, rendered: str) -> list[int]:
        self.num_encoded += 1
        return super().encode(rendered)

    def encode_prompt(self, text: str) -> list[int]:
        self.num_encoded += 1
        return super().encode_prompt(text)


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Iterator[CountingVocabulary]:
    vocabulary = CountingVocabulary.load(model_path)
    yield vocabulary
    vocabulary.close()


def make_text(vocabulary: Vocabulary, template: str | None = None, *, max_model_len: int = 100) -> Text:
    settings = [("scheduler.max_model_len", str(max_model_len)), ("scheduler.kv_cells", str(max(max_model_len, 512)))]
    renderer = PromptRenderer(vocabulary, template)
    return Text("gemma", vocabulary, renderer, config.load(None, env={}, overrides=settings))


def question(text: str) -> Chat:
    return Chat(messages=[ChatMessage("user", text)])


# ---- refused by size -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["messages", "prompt"])
async def test_what_cannot_fit_is_refused_without_being_tokenised(vocabulary: CountingVocabulary, kind: str) -> None:
    text, before = make_text(vocabulary), vocabulary.num_encoded
    huge = "word " * 100_000
    with pytest.raises(PromptTooLong, match=r"at least \d+ tokens > 99 maximum") as caught:
        await (
            text.encode_prompt(huge)
            if kind == "prompt"
            else text.encode_chat(Chat(messages=[ChatMessage("user", huge)]))
        )
    assert vocabulary.num_encoded == before
    assert (caught.value.param, caught.value.max_tokens) == (kind, 99)
    assert 99 < caught.value.num_prompt_tokens <= 100_001


async def test_what_might_fit_is_counted_to_the_token(vocabulary: CountingVocabulary) -> None:
    text = make_text(vocabulary)
    with pytest.raises(PromptTooLong, match=r"long: 201 tokens > 99 maximum") as caught:
        await text.encode_prompt("word" + " word" * 199)
    assert caught.value.num_prompt_tokens == 201


async def test_size_of_a_chat_is_what_its_template_makes_of_it(vocabulary: CountingVocabulary) -> None:
    text = make_text(vocabulary, TEMPLATE)
    assert await text.encode_chat(question("word " * 100_000)) == vocabulary.encode("word word ")


# ---- notes ---------------------------------------------------------------------------------------------


def test_owner_is_told_of_a_length_beyond_the_training(vocabulary: CountingVocabulary) -> None:
    (note,) = make_text(vocabulary, max_model_len=32_769).notes
    assert "scheduler.max_model_len is 32769" in note
    assert "trained for 32768 tokens" in note
    assert make_text(vocabulary, max_model_len=32_768).notes == []


# ---- how to draw -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "num_tokens"), [(None, 10), (3, 3), (0, 0), (10**30, 10)])
def test_limit_of_tokens_is_what_was_asked_for_or_what_fits(
    vocabulary: Vocabulary, wanted: int | None, num_tokens: int
) -> None:
    sampling = make_text(vocabulary).sampling(Ask(sampling=SamplingParams(min_tokens=50), max_tokens=wanted), 90)
    assert (sampling.max_tokens, sampling.min_tokens) == (num_tokens, num_tokens)


def test_bias_outside_of_the_vocabulary_is_refused(vocabulary: Vocabulary) -> None:
    text = make_text(vocabulary)
    for token_id in (-1, text.num_vocab_tokens, 10**30):
        with pytest.raises(
            InvalidRequest, match=f"token {token_id}; the vocabulary is 0 to {text.num_vocab_tokens - 1}"
        ):
            text.sampling(Ask(sampling=SamplingParams(logit_bias={token_id: 1.0})), 1)
