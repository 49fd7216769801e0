"""Between text and tokens: what is refused before it is tokenised, and what the owner should know."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from homeai import config
from homeai.backends.llamacpp.vocab import load_vocabulary
from homeai.errors import InvalidRequest, PromptTooLong
from homeai.request import SamplingParams
from homeai.server import text as text_module
from homeai.server.ask import Ask
from homeai.server.conversation import AnswerFormat, Chat, ChatMessage
from homeai.server.grammars import grammar_for, grammar_of_answer
from homeai.server.parts import Content, Reasoning
from homeai.server.prompts import PromptRenderer
from homeai.server.text import LONG_CHARS, MAX_CHARS, Text
from homeai.vocabulary import Vocabulary

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
    vocabulary = load_vocabulary(model_path)
    vocabulary.__class__ = CountingVocabulary
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


# ---- who waits for whom --------------------------------------------------------------------------------


async def test_chat_does_not_wait_for_what_is_very_long(vocabulary: Vocabulary) -> None:
    text = make_text(vocabulary, max_model_len=8192)
    may_end = threading.Event()
    long = [asyncio.create_task(text.run(LONG_CHARS + 1, may_end.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            assert await text.encode_chat(question("word " * 1000))
        assert not any(task.done() for task in long)
    finally:
        may_end.set()
        await asyncio.gather(*long)


async def test_more_than_can_be_tokenised_soon_is_refused_with_both_counts(vocabulary: Vocabulary) -> None:
    text = make_text(vocabulary)
    huge = "a" * (MAX_CHARS + 1)
    message = f"has {MAX_CHARS + 1} characters > {MAX_CHARS} maximum"
    with pytest.raises(InvalidRequest, match=f"content {message}") as caught:
        await text.tokenize([huge], add_special=False, param="content")
    assert caught.value.param == "content"
    with pytest.raises(InvalidRequest, match=f"logit_bias {message}"):
        await text.tokenize_each([huge], param="logit_bias")
    with pytest.raises(InvalidRequest, match="messages has"):
        await text.render_chat(question(huge))


async def test_texts_are_tokenised_each_by_itself(vocabulary: Vocabulary) -> None:
    text = make_text(vocabulary)
    texts = ["Hello", " world", "", "щёчки"]
    one_by_one = [await text.tokenize([one], add_special=False, parse_special=False, param="x") for one in texts]
    assert await text.tokenize_each(texts, param="x") == one_by_one


# ---- grammars ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_properties", "is_inline"), [(3, True), (300, False)])
async def test_large_schema_is_read_beside_the_loop(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, num_properties: int, is_inline: bool
) -> None:
    text, threads = make_text(vocabulary), set()
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(num_properties)}}
    answer = AnswerFormat(schema)

    def note_thread(check: Callable[..., object]) -> Callable[..., object]:
        def noting(*arguments: object, **options: object) -> object:
            threads.add(threading.current_thread() is threading.main_thread())
            return check(*arguments, **options)

        return noting

    monkeypatch.setattr(text_module, "grammar_for", note_thread(grammar_for))
    monkeypatch.setattr(text_module, "grammar_of_answer", note_thread(grammar_of_answer))
    chat = replace(question("Hi"), answer_format=answer)
    assert await text.grammar_for(chat, [], begins_in_reasoning=False) is not None
    assert threads == {is_inline}
    await text.grammar_of_answer(answer, [])
    assert threads == {is_inline}


def test_reasoning_goes_to_whoever_wants_it(vocabulary: Vocabulary) -> None:
    """Templates of gpt-oss have no switch for it."""
    text = make_text(vocabulary, "<|channel|><|message|>{{ messages[0].content }}")
    answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    for thinks, kinds in ((None, [Reasoning, Content]), (True, [Reasoning, Content]), (False, [Content])):
        parser = text.parser(replace(question("Hi"), thinks=thinks), begins_in_reasoning=False)
        assert [type(part) for part in parser.push(answer)] == kinds


@pytest.mark.parametrize(("ignores_end", "stopped"), [(False, "\nUser:"), (True, None)])
def test_stop_strings_of_a_transcript_stand_for_its_end_token(
    vocabulary, ignores_end: bool, stopped: str | None
) -> None:
    output = make_text(vocabulary).chat_output((), question("Where?"), ignores_end=ignores_end)
    for token_id in vocabulary.encode("Paris\nUser: And"):
        output.push(token_id, is_end=False)
    assert output.stopped == stopped
