"""What changes at each request leaves the beginning of the prompt, and nothing else does."""

from __future__ import annotations

import pytest

from homeai.config import VolatileConfig
from homeai.server.conversation import ChatMessage
from homeai.server.volatile import MAX_CHARS, Rule, steadied

CLOCK = r"The current time is [0-9:]+\.?"
MOVE_CLOCK = Rule.of(VolatileConfig(pattern=CLOCK, action="move"))
DROP_CLOCK = Rule.of(VolatileConfig(pattern=CLOCK, action="drop"))
DROP_CHECKSUM = Rule.of(VolatileConfig(pattern="cch=[0-9a-f]+;", action="drop"))
HOUSE = "You are the voice of this house.\nThe current time is 12:34:56.\nThere are two lamps."
STEADY_HOUSE = "You are the voice of this house.\n\nThere are two lamps."


def system(content: str) -> ChatMessage:
    return ChatMessage("system", content)


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


def test_clock_is_moved_behind_the_last_question() -> None:
    chat = [system(HOUSE), user("Hi"), ChatMessage("assistant", "Hello"), user("Lamp on")]
    result = steadied(chat, [MOVE_CLOCK])
    assert result.messages == [
        system(STEADY_HOUSE),
        *chat[1:3],
        user("Lamp on\n\nThe current time is 12:34:56."),
    ]
    assert result.moved == ("The current time is 12:34:56.",)


def test_clock_can_be_dropped() -> None:
    result = steadied([system(HOUSE), user("Lamp on")], [DROP_CLOCK])
    assert result.messages == [system(STEADY_HOUSE), user("Lamp on")]
    assert result.note == "volatile parts of the prompt: 0 moved, 1 dropped"


def test_beginning_is_the_same_whatever_the_time() -> None:
    later = HOUSE.replace("12:34:56", "12:34:59")
    one, other = (steadied([system(text), user("Hi")], [MOVE_CLOCK]).messages for text in (HOUSE, later))
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_checksum_in_the_first_block_of_several_is_dropped_and_the_others_stay() -> None:
    blocks = [{"type": "text", "text": "version=2; cch=04f3a;"}, {"type": "text", "text": "You write code."}]
    (message, _) = steadied([ChatMessage("system", blocks), user("Fix it")], [DROP_CHECKSUM]).messages
    assert message.content == [{"type": "text", "text": "version=2; "}, blocks[1]]
    assert blocks[0]["text"] == "version=2; cch=04f3a;", "what came in is as it was"


def test_moved_part_becomes_a_block_where_the_question_is_made_of_blocks() -> None:
    question = ChatMessage("user", [{"type": "text", "text": "Lamp on"}])
    (_, message) = steadied([system(HOUSE), question], [MOVE_CLOCK]).messages
    assert message.content == [
        {"type": "text", "text": "Lamp on"},
        {"type": "text", "text": "The current time is 12:34:56."},
    ]


def test_first_message_counts_whoever_speaks_and_system_messages_wherever_they_stand() -> None:
    chat = [user(HOUSE), ChatMessage("developer", HOUSE), user("Lamp on")]
    result = steadied(chat, [DROP_CLOCK])
    assert [message.content for message in result.messages] == [STEADY_HOUSE, STEADY_HOUSE, "Lamp on"]


def test_what_somebody_says_later_is_theirs() -> None:
    chat = [system("You are a clock."), user("The current time is 12:34:56."), ChatMessage("assistant", HOUSE)]
    result = steadied(chat, [MOVE_CLOCK, DROP_CHECKSUM])
    assert result.messages == chat
    assert result.note is None


def test_parts_keep_their_order_and_rules_theirs() -> None:
    rules = [MOVE_CLOCK, Rule.of(VolatileConfig(pattern="Today is [A-Z][a-z]+\n?", action="move"))]
    text = "Today is Monday\nThe current time is 1:00. The current time is 2:00."
    (message, asked) = steadied([system(text), user("Hi")], rules).messages
    assert message.content == " "
    assert asked.content == "Hi\n\nThe current time is 1:00.\nThe current time is 2:00.\nToday is Monday"


@pytest.mark.parametrize("chat", [[system(HOUSE)], [system(HOUSE), ChatMessage("assistant", "Well,")]])
def test_without_a_question_the_end_of_the_system_prompt_must_do(chat: list[ChatMessage]) -> None:
    first, *others = steadied(chat, [MOVE_CLOCK]).messages
    assert first.content == f"{STEADY_HOUSE}\n\nThe current time is 12:34:56."
    assert others == chat[1:]


def test_only_the_beginning_of_a_long_text_is_looked_at() -> None:
    early, late = f"The current time is 1. {'x' * MAX_CHARS}", f"{'x' * MAX_CHARS}The current time is 1."
    (first, second) = steadied([system(early), system(late)], [DROP_CLOCK]).messages
    assert first.content == early.removeprefix("The current time is 1.")
    assert second.content == late


@pytest.mark.parametrize("content", [None, "", [], [{"type": "image_url", "image_url": {}}]])
def test_strange_content_is_left_to_who_checks_it(content: object) -> None:
    chat = [ChatMessage("system", content), user("Hi")]  # type: ignore[arg-type]
    assert steadied(chat, [DROP_CLOCK]).messages == chat


def test_half_a_letter_is_what_the_tokenizer_makes_of_it() -> None:
    (message, _) = steadied([system(f"\ud800 {HOUSE}"), user("Hi")], [DROP_CLOCK]).messages
    assert message.content == f"\ufffd {STEADY_HOUSE}"
