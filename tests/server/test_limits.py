"""Rules of what an API key may use, on a clock of their own."""

from __future__ import annotations

from datetime import datetime

import pytest

from homeai.errors import PromptTooLong, QuotaExceeded, TooManyRequests
from homeai.keys import Key
from homeai.server.answers import error_headers
from homeai.server.limits import KeyLimits, day_of

NOON = datetime(2026, 3, 4, 12).timestamp()
MIDNIGHT = datetime(2026, 3, 5).timestamp()


def make_key(name: str = "tablet", **limits: int) -> Key:
    return Key(name=name, created_at=0.0, **limits)


def retry_after_s(limits: KeyLimits, key: Key, now: float) -> float:
    """How long the key is told to wait."""
    with pytest.raises(TooManyRequests) as caught:
        limits.check(key, now)
    assert caught.value.status == 429
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s


# ---- requests per minute -------------------------------------------------------------------------------


def test_so_many_requests_fit_into_any_minute() -> None:
    limits, key = KeyLimits(), make_key(requests_per_minute=3)
    for now in (0.0, 10.0, 20.0):
        limits.check(key, NOON + now)
    assert retry_after_s(limits, key, NOON + 30) == pytest.approx(30)
    assert retry_after_s(limits, key, NOON + 59) == pytest.approx(1)


def test_who_comes_back_when_told_is_let_in() -> None:
    """And not before: the wait is true."""
    limits, key = KeyLimits(), make_key(requests_per_minute=2)
    limits.check(key, NOON)
    limits.check(key, NOON + 1)
    wait_s = retry_after_s(limits, key, NOON + 2)
    assert retry_after_s(limits, key, NOON + 2 + wait_s - 0.1) == pytest.approx(0.1)
    limits.check(key, NOON + 2 + wait_s)
    assert retry_after_s(limits, key, NOON + 2 + wait_s) == pytest.approx(1)


def test_refused_request_does_not_count() -> None:
    limits, key = KeyLimits(), make_key(requests_per_minute=1)
    limits.check(key, NOON)
    for now in range(1, 60):
        retry_after_s(limits, key, NOON + now)
    limits.check(key, NOON + 60)


def test_message_names_both_sides() -> None:
    limits, key = KeyLimits(), make_key(requests_per_minute=1)
    limits.check(key, NOON)
    with pytest.raises(TooManyRequests, match="key 'tablet' may ask 1 times a minute; try again in 60 s"):
        limits.check(key, NOON)


def test_each_key_is_counted_by_itself() -> None:
    limits = KeyLimits()
    for name in ("a", "b"):
        limits.check(make_key(name, requests_per_minute=1), NOON)
    retry_after_s(limits, make_key("a", requests_per_minute=1), NOON)


def test_clock_that_is_set_back_locks_nobody_out() -> None:
    limits, key = KeyLimits(), make_key(requests_per_minute=1)
    limits.check(key, NOON)
    limits.check(key, NOON - 3600)


@pytest.mark.parametrize("key", [None, make_key()])
def test_without_limits_there_are_none(key: Key | None) -> None:
    limits = KeyLimits()
    for _ in range(1000):
        limits.check(key, NOON)
        limits.charge("tablet", 10**9, NOON)
    assert limits.room(key, 10**6, 77) == 77


# ---- tokens per day ------------------------------------------------------------------------------------


def test_tokens_of_a_day_are_used_up_until_midnight() -> None:
    limits, key = KeyLimits(), make_key(tokens_per_day=100)
    limits.charge("tablet", 99, NOON)
    limits.check(key, NOON)
    limits.charge("tablet", 50, NOON)
    assert retry_after_s(limits, key, NOON) == MIDNIGHT - NOON
    assert retry_after_s(limits, key, MIDNIGHT - 1) == 1
    limits.check(key, MIDNIGHT)


def test_what_the_ledger_has_of_today_counts() -> None:
    limits = KeyLimits({"tablet": 100, "phone": 5}, NOON)
    retry_after_s(limits, make_key("tablet", tokens_per_day=100), NOON)
    limits.check(make_key("phone", tokens_per_day=100), NOON)
    limits.check(make_key("tablet", tokens_per_day=100), MIDNIGHT)


def test_request_that_ends_after_midnight_counts_for_the_new_day() -> None:
    limits, key = KeyLimits({"tablet": 80}, NOON), make_key(tokens_per_day=100)
    limits.charge("tablet", 30, MIDNIGHT + 1)
    limits.check(key, MIDNIGHT + 2)
    limits.charge("tablet", 70, MIDNIGHT + 3)
    retry_after_s(limits, key, MIDNIGHT + 4)


def test_coming_back_at_once_is_said_to_be_in_vain() -> None:
    with pytest.raises(QuotaExceeded, match="100 of 100") as caught:
        KeyLimits({"tablet": 100}, NOON).check(make_key(tokens_per_day=100), NOON)
    headers = error_headers(caught.value)
    assert headers["x-should-retry"] == "false"
    assert headers["retry-after"] == str(12 * 3600)


def test_request_without_a_key_is_charged_to_nobody() -> None:
    limits = KeyLimits()
    limits.charge(None, 10**9, NOON)
    limits.check(make_key(tokens_per_day=1), NOON)


def test_day_is_from_midnight_to_midnight() -> None:
    assert day_of(NOON) == (datetime(2026, 3, 4).timestamp(), MIDNIGHT)
    assert day_of(MIDNIGHT)[0] == MIDNIGHT


# ---- tokens of one request -----------------------------------------------------------------------------


def test_prompt_and_answer_fit_into_the_context_of_the_key() -> None:
    key = make_key(max_context=100)
    assert KeyLimits().room(key, 40, 20) == 20
    assert KeyLimits().room(key, 40, 600) == 60
    assert KeyLimits().room(key, 99, 600) == 1


def test_longer_prompt_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptTooLong, match="prompt is too long: 100 tokens > 99 maximum") as caught:
        KeyLimits().room(make_key(max_context=100), 100, 1)
    assert caught.value.code == "context_length_exceeded"
