"""Rules of what programs ask for themselves: recognised by how it begins, and nothing else is."""

from __future__ import annotations

import pytest

from homeai.config import SideRequestsConfig
from homeai.server.conversation import ChatMessage
from homeai.server.side_requests import MAX_LOOKED_AT, SideRequests, heads_of

RULES = SideRequests(SideRequestsConfig())

OF_PROGRAMS = [
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Guidelines: …",
    "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history, …",
    "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next …",
    "Generate a concise, sentence-case title (3-7 words) that captures the main topic or goal of this coding session.",
    "Please write a 5-10 word title for the following conversation:\n\n[Last 3 of 8 messages]",
    "Analyze if this message indicates a new conversation topic. If it does, extract a 2-3 word title …",
    "Summarize this coding conversation in under 50 characters.",
    "You are a title generator. You output ONLY a thread title.",
]
OF_PEOPLE = [
    "",
    "Hello",
    "### Task:\nRespond to the user query using the provided context, incorporating inline citations.",
    "### Task:\nAnalyze the chat history to determine the necessity of generating search queries",
    "Generate a title for my novel about a lighthouse.",
    "Write a story. Its title is: The last conversation.",
    "Summarize this coding conversation in detail, with all decisions.",
    "What does 'Analyze if this message indicates a new conversation topic' mean?",
]


@pytest.mark.parametrize("text", OF_PROGRAMS)
def test_what_programs_ask_for_themselves_is_recognised(text: str) -> None:
    assert RULES.is_side_request([text], {})
    assert RULES.is_side_request(["You are Claude Code.", f"\n{text}"], {})


@pytest.mark.parametrize("text", OF_PEOPLE)
def test_what_people_wait_for_is_not(text: str) -> None:
    assert not RULES.is_side_request([text], {"x-openwebui-task": ""})


@pytest.mark.parametrize(
    ("task", "is_side"),
    [
        ("title_generation", True),
        ("tags_generation", True),
        ("follow_up_generation", True),
        ("query_generation", False),  # the answer waits for it
        ("function_calling", False),
        ("", False),
    ],
)
def test_open_webui_says_what_its_request_is_for(task: str, is_side: bool) -> None:
    assert RULES.is_side_request(["Hello"], {"x-openwebui-task": task}) is is_side


def test_only_the_beginning_of_a_text_tells() -> None:
    assert not RULES.is_side_request([" " * MAX_LOOKED_AT + OF_PROGRAMS[0]], {})


def test_rules_are_the_owner_s() -> None:
    config = SideRequestsConfig(patterns=("^nightly:",), headers={"X-Task": "^chore"})
    rules = SideRequests(config)
    assert rules.is_side_request(["nightly: tidy up"], {})
    assert rules.is_side_request([], {"x-task": "chores"})
    assert not rules.is_side_request([OF_PROGRAMS[0]], {})


def test_without_a_class_to_lower_to_nothing_is_one() -> None:
    rules = SideRequests(SideRequestsConfig(lower_to=None))
    assert not any(rules.is_side_request([text], {"x-openwebui-task": "title_generation"}) for text in OF_PROGRAMS)


def test_system_messages_and_the_outer_user_messages_are_looked_at() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url"}, {"type": "text", "text": "c"}]
    messages = [
        ChatMessage("developer", "a"),
        ChatMessage("user", parts),
        ChatMessage("assistant", "no"),
        ChatMessage("user", "no"),
        ChatMessage("tool", "no"),
        ChatMessage("user", "d"),
        ChatMessage("assistant", None),
    ]
    assert heads_of(messages) == ["a", "b", "c", "d"]
    assert heads_of([ChatMessage("user", "once")]) == ["once"]
    assert heads_of([ChatMessage("user", None)]) == [""]
