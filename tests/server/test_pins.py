"""Pins as the settings want them: which tokens, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from homeai import config
from homeai.backends.llamacpp.vocab import load_vocabulary
from homeai.server.conversation import Chat, ChatMessage
from homeai.server.pins import MIN_TOKENS, read_pins
from homeai.server.prompts import PromptRenderer
from homeai.server.text import Text
from homeai.server.warmup import Pin
from homeai.vocabulary import Vocabulary

HOUSE = "You are the voice of this house. " + " ".join(f"Lamp {i} is in room {i}." for i in range(30))
SOURCE = "{name: kitchen, class: voice, volatile: [{pattern: 'It is [0-9:]+', action: move}]}"
CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}"""
SYSTEM_INSIDE_THE_QUESTION = "{{ messages[0].content }}\n\n{{ messages[1].content }}"
NO_SYSTEM = "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Iterator[Vocabulary]:
    vocabulary = load_vocabulary(model_path)
    yield vocabulary
    vocabulary.close()


class House:
    """Settings with pins, and the text of a model under them."""

    def __init__(self, vocabulary: Vocabulary, pins: str, template: str | None, *settings: tuple[str, str]) -> None:
        given = [("pins", pins), ("sources", f"[{SOURCE}]"), *settings]
        self.config = config.load(None, env={}, overrides=given)
        self.text = Text("gemma", vocabulary, PromptRenderer(vocabulary, template), self.config)
        self.pins = read_pins(self.config, self.text)

    @property
    def pin(self) -> Pin:
        (pin,) = self.pins
        return pin


@pytest.mark.parametrize("question", ["Hi", "  Lights on!", "\n7", "…"])
@pytest.mark.parametrize("template", [None, CHATML, SYSTEM_INSIDE_THE_QUESTION, NO_SYSTEM])
async def test_every_chat_with_the_system_prompt_begins_with_its_pin(
    vocabulary: Vocabulary, template: str | None, question: str
) -> None:
    house = House(vocabulary, f"[{{name: house, system: {HOUSE!r}}}]", template)
    prompt = await house.text.encode_chat(Chat(messages=[ChatMessage("system", HOUSE), ChatMessage("user", question)]))
    num_pinned = house.pin.num_tokens
    assert prompt[:num_pinned] == house.pin.token_ids
    assert num_pinned >= len(await house.text.encode_prompt(HOUSE)) - 2


async def test_conversation_begins_with_the_pin_too(vocabulary: Vocabulary) -> None:
    house = House(vocabulary, f"[{{name: house, system: {HOUSE!r}}}]", CHATML)
    turns = [ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello"), ChatMessage("user", "Lights on")]
    prompt = await house.text.encode_chat(Chat(messages=[ChatMessage("system", HOUSE), *turns]))
    assert prompt[: house.pin.num_tokens] == house.pin.token_ids


async def test_file_says_the_same_as_the_text_in_it(vocabulary: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "house.txt"
    path.write_text(HOUSE, encoding="utf-8")
    one, other = House(vocabulary, f"[{{name: a, system: {HOUSE!r}}}, {{name: b, file: {path}}}]", CHATML).pins
    assert one.token_ids == other.token_ids


async def test_raw_beginning_is_the_beginning_of_longer_prompts(vocabulary: Vocabulary) -> None:
    house = House(vocabulary, f"[{{name: raw, prompt: {HOUSE!r}}}]", CHATML)
    longer = await house.text.encode_prompt(f"{HOUSE} And so on.")
    assert longer[: house.pin.num_tokens] == house.pin.token_ids
    assert house.pin.num_tokens == len(await house.text.encode_prompt(HOUSE)) - 1


async def test_pin_goes_by_the_rules_of_its_source(vocabulary: Vocabulary) -> None:
    house = House(vocabulary, f"[{{name: house, source: kitchen, system: {'It is 12:30. ' + HOUSE!r}}}]", CHATML)
    steady = House(vocabulary, f"[{{name: house, system: {'. ' + HOUSE!r}}}]", CHATML)
    assert house.pin.token_ids == steady.pin.token_ids
    assert (house.pin.source, house.pin.fairness_class) == ("kitchen", "voice")
    assert (steady.pin.source, steady.pin.fairness_class) == ("default", "interactive")


# ---- what cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pin", "why"),
    [
        ("system: Hello", f"too short: [0-9]+ tokens < {MIN_TOKENS} minimum"),
        ("file: /nowhere/house.txt", "No such file.*'/nowhere/house.txt'"),
        (f"prompt: {'word ' * 300}", "prompt is too long: [0-9]+ tokens > 255 maximum"),
        (f"system: {'word ' * 300}", "prompt is too long: [0-9]+ tokens > 255 maximum"),
    ],
)
def test_pin_that_cannot_be_names_both_sides(vocabulary: Vocabulary, pin: str, why: str) -> None:
    house = House(vocabulary, f"[{{name: a, {pin}}}]", CHATML, ("scheduler.max_model_len", "256"))
    assert house.pin.problem is not None
    assert re.search(why, house.pin.problem)


def test_pins_leave_half_of_the_cells_to_requests(vocabulary: Vocabulary) -> None:
    pins = ", ".join(f"{{name: {name}, prompt: {name + ' word' * 99!r}}}" for name in "abc")
    house = House(vocabulary, f"[{pins}]", CHATML, ("scheduler.kv_cells", "512"))
    assert [pin.problem for pin in house.pins] == [
        None,
        None,
        "its 100 tokens after the 200 of the pins before it are more than 256, half of scheduler.kv_cells",
    ]


def test_template_that_refuses_is_told(vocabulary: Vocabulary) -> None:
    house = House(vocabulary, f"[{{name: a, system: {HOUSE!r}}}]", "{{ raise_exception('never') }}")
    assert "never" in (house.pin.problem or "")
