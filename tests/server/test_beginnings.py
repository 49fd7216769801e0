"""Which line of a source's prompts changes is found, and nobody's words are kept for it."""

from __future__ import annotations

from homeai.server.beginnings import MAX_CHARS, MAX_PIECES, MAX_PLACES, MAX_SOURCES, Beginnings, mask_of, pieces_of
from homeai.server.conversation import ChatMessage

HOUSE = "\n".join(f"light.room_{letter} is on" for letter in "abcdefghijklmnopqrstuvwxyz")


def system(text: str) -> ChatMessage:
    return ChatMessage("system", text)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def seen(*prompts: list[ChatMessage], is_private: bool = False) -> Beginnings:
    beginnings = Beginnings()
    for prompt in prompts:
        beginnings.see("speaker", prompt, is_private=is_private)
    return beginnings


def clock(minute: int) -> list[ChatMessage]:
    return [system(f"You speak for a house.\nIt is Monday, 12:{minute}:07.\n{HOUSE}"), user("On?")]


def test_clock_is_found_with_its_line_its_mask_and_what_it_costs() -> None:
    (status,) = seen(clock(10), clock(11), clock(12)).status()
    (line,) = status.lines
    assert (status.source, status.num_prompts) == ("speaker", 3)
    assert (line.message, line.role, line.line, line.num_changes) == (0, "system", 2, 2)
    assert line.mask == "It is @, #:#:#."
    assert line.num_lost_chars >= len(HOUSE)


def test_sentence_of_a_long_line_is_found_too() -> None:
    prompts = [
        [system(f"You speak. Checksum is {value}. {HOUSE.replace(chr(10), ' ')}")] for value in ("04f3a", "b9721", "1")
    ]
    (status,) = seen(*prompts).status()
    assert [(line.line, line.mask) for line in status.lines] == [(1, "Checksum is #.")]


def test_mask_is_only_kept_when_it_comes_again() -> None:
    said = ["secret one", "quite another secret", "a third"]
    (status,) = seen(*([system(f"{words}\n{HOUSE}")] for words in said)).status()
    (line,) = status.lines
    assert (line.num_changes, line.mask) == (2, None)


def test_private_source_leaves_the_place_and_no_mask() -> None:
    (status,) = seen(clock(10), clock(11), clock(12), is_private=True).status()
    assert [(line.line, line.num_changes, line.mask) for line in status.lines] == [(2, 2, None)]


def test_what_people_say_is_never_masked() -> None:
    prompts = [[system("Be kind."), user(f"Room {number}.\n{HOUSE}")] for number in (1, 2, 3)]
    (status,) = seen(*prompts).status()
    assert [(line.message, line.role, line.mask) for line in status.lines] == [(1, "user", None)]


def test_prompt_that_is_no_chat_leaves_no_mask() -> None:
    prompts = [[ChatMessage("prompt", f"Room {number}.\n{HOUSE}")] for number in (1, 2, 3)]
    (status,) = seen(*prompts).status()
    assert [(line.line, line.num_changes, line.mask) for line in status.lines] == [(1, 2, None)]


def test_conversation_that_grows_and_new_questions_are_no_change() -> None:
    begin = [system(HOUSE), user("Hi")]
    grown = [*begin, ChatMessage("assistant", "Hello"), user("More?")]
    (status,) = seen(begin, grown, [system(HOUSE), user("Something else")]).status()
    assert (status.lines, status.num_shortened) == ([], 0)


def test_history_that_loses_its_oldest_messages_is_counted() -> None:
    turns = [user(f"{letter} {HOUSE}") for letter in "abcdef"]
    (status,) = seen(*([system("Be brief."), *turns[i : i + 3]] for i in range(4))).status()
    assert (status.num_shortened, status.lines) == (3, [])
    assert status.num_lost_chars_shortened >= 2 * len(HOUSE) - 52


def test_lines_in_another_order_are_told_from_new_ones() -> None:
    lines = HOUSE.split("\n")
    (status,) = seen(*([system("\n".join([*lines[i:], *lines[:i]]))] for i in (0, 3, 6))).status()
    (line,) = status.lines
    assert (line.num_changes, line.num_moves) == (2, 2)


def test_who_refuses_the_cache_is_counted() -> None:
    beginnings = Beginnings()
    for may_use_cache in (True, False, False):
        beginnings.see("speaker", clock(1), is_private=False, may_use_cache=may_use_cache)
    assert beginnings.status()[0].num_cache_refused == 2


def test_sources_places_and_pieces_are_bounded() -> None:
    beginnings = Beginnings()
    for index in range(MAX_SOURCES + 5):
        beginnings.see(f"source {index}", clock(1), is_private=False)
    assert [status.source for status in beginnings.status()] == [f"source {i}" for i in range(5, MAX_SOURCES + 5)]
    lines = [f"line {letter}{other}" for letter in "abcdefgh" for other in "abcdefgh"]
    prompts = []
    for index in range(MAX_PLACES + 4):
        changed = [*lines]
        changed[index] = f"changed {index}"
        prompts += [[system("\n".join(changed))], [system("\n".join(lines))]]
    assert len(seen(*prompts).status()[0].lines) == MAX_PLACES
    assert len(list(pieces_of([system("\n" * 10 * MAX_PIECES)]))) == MAX_PIECES
    assert sum(len(piece.text) for piece in pieces_of([system("x" * 10 * MAX_CHARS)])) == MAX_CHARS


def test_parts_of_a_message_count_on() -> None:
    parts = [{"type": "text", "text": "a\nb"}, {"type": "image"}, {"type": "text", "text": "c"}]
    assert [(piece.line, piece.text) for piece in pieces_of([ChatMessage("user", parts)])] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
    ]
    assert list(pieces_of([ChatMessage("assistant", None)])) == []


def test_mask_hides_numbers_checksums_and_dates() -> None:
    assert mask_of(" Sun, 29 Nov 2026 at 7:05 pm ") == "@, # @ # at #:# @"
    assert mask_of("cch=04f3a; v=2") == "cch=#; v=#"
    assert mask_of("may I?") == "@ I?"
    assert mask_of("half a letter \ud83d, 5") == "half a letter ?, #"
