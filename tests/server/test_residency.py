"""Whether the model should be loaded: every policy, every wish, on a clock that moves when told."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import pytest

from homeai.config import ResidencyConfig
from homeai.server.residency import Aim, Facts, Hours, Needs, Verdict, Wish, at_start, decide, opens_in_s

NOON = datetime(2030, 5, 1, 12, 0)
MIDNIGHT = datetime(2030, 5, 1, 0, 0)
PINNED = ResidencyConfig()
IDLE = ResidencyConfig(policy="idle", idle_timeout_s=900.0)
BY_DAY = ResidencyConfig(policy="schedule", hours="07:00-23:00")
STRICT = ResidencyConfig(policy="schedule", hours="07:00-23:00", outside_hours="refuse")


def verdict(settings: ResidencyConfig, **facts: object) -> Verdict:
    return decide(settings, Facts(**({"now": 1000.0, "local": NOON} | facts)))  # type: ignore[arg-type]


# ---- policies ------------------------------------------------------------------------------------------


def test_pinned_stays_however_long_nobody_asks() -> None:
    assert verdict(PINNED) == Verdict(Aim.RESIDENT, "the model is always loaded (residency.policy: pinned)")


@pytest.mark.parametrize("settings", [IDLE, BY_DAY, STRICT])
def test_live_requests_keep_it(settings: ResidencyConfig) -> None:
    assert verdict(settings, num_live=1, local=MIDNIGHT).aim is Aim.RESIDENT


def test_idle_looks_again_when_the_last_need_ends_and_sleeps_then() -> None:
    awake = verdict(IDLE, needed_until=1100.0)
    assert (awake.aim, awake.look_in_s) == (Aim.RESIDENT, 100.0)
    asleep = verdict(IDLE, needed_until=1100.0, now=1100.0)
    assert (asleep.aim, asleep.look_in_s) == (Aim.SLEEPING, None)


def test_idle_with_a_wish_for_good_does_not_sleep() -> None:
    assert verdict(IDLE, needed_until=math.inf) == Verdict(Aim.RESIDENT, "a client asked to keep it loaded")


@pytest.mark.parametrize(("settings", "is_resident"), [(PINNED, True), (IDLE, True), (BY_DAY, False), (STRICT, False)])
def test_start_loads_it_unless_it_is_out_of_hours(settings: ResidencyConfig, is_resident: bool) -> None:
    assert (at_start(settings, MIDNIGHT).aim is Aim.RESIDENT) is is_resident
    assert at_start(settings, NOON).aim is Aim.RESIDENT


def test_schedule_out_of_hours_is_as_idle() -> None:
    assert verdict(BY_DAY, local=MIDNIGHT).aim is Aim.SLEEPING
    awake = verdict(BY_DAY, local=MIDNIGHT, needed_until=1060.0)
    assert (awake.aim, awake.look_in_s) == (Aim.RESIDENT, 60.0)
    assert verdict(STRICT, local=MIDNIGHT, needed_until=1060.0).aim is Aim.SLEEPING


def test_schedule_looks_at_its_edges_and_now_and_then() -> None:
    before = datetime(2030, 5, 1, 22, 59)
    assert verdict(BY_DAY, local=before).look_in_s == 60.0
    assert (verdict(BY_DAY, local=NOON).look_in_s or math.inf) <= 300.0


def test_a_day_of_the_schedule_changes_twice() -> None:
    changes = []
    at = MIDNIGHT
    last = decide(BY_DAY, Facts(now=0.0, local=at)).aim
    while at < MIDNIGHT + timedelta(days=1):
        verdict = decide(BY_DAY, Facts(now=0.0, local=at))
        if verdict.aim is not last:
            changes.append((at.hour, at.minute, verdict.aim))
            last = verdict.aim
        assert verdict.look_in_s is not None, "the clock changes it"
        at += timedelta(seconds=verdict.look_in_s)
    assert changes == [(7, 0, Aim.RESIDENT), (23, 0, Aim.SLEEPING)]


def test_who_asks_out_of_hours_is_told_when_it_opens() -> None:
    assert opens_in_s(STRICT, datetime(2030, 5, 1, 6, 30)) == 1800.0
    assert opens_in_s(STRICT, datetime(2030, 5, 1, 23, 0)) == 8 * 3600.0
    assert opens_in_s(STRICT, NOON) is None
    assert opens_in_s(BY_DAY, MIDNIGHT) is None


@pytest.mark.parametrize(
    ("text", "within", "outside"),
    [
        ("07:00-23:00", ["07:00", "22:59"], ["06:59", "23:00", "00:00"]),
        ("22:00-6:00", ["22:00", "00:00", "05:59"], ["06:00", "21:59"]),
        ("08:00 - 08:00", ["00:00", "08:00", "23:59"], []),
    ],
)
def test_hours_may_go_over_midnight(text: str, within: list[str], outside: list[str]) -> None:
    hours = Hours.parse(text)
    for time in within + outside:
        assert hours.is_within(datetime.fromisoformat(f"2030-05-01T{time}")) is (time in within)


# ---- the owner and others --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [PINNED, IDLE, BY_DAY, STRICT])
@pytest.mark.parametrize(
    ("wish", "pressure", "aim"),
    [
        (Wish.YIELD, None, Aim.YIELDED),
        (Wish.PIN, None, Aim.RESIDENT),
        (Wish.UNLOAD, None, Aim.SLEEPING),
        (Wish.UNLOAD, "a game", Aim.YIELDED),
        (Wish.PIN, "a game", Aim.YIELDED),
        (None, "a game", Aim.YIELDED),
    ],
)
def test_the_owners_word_goes_before_the_policy(
    settings: ResidencyConfig, wish: Wish | None, pressure: str | None, aim: Aim
) -> None:
    for local in (NOON, MIDNIGHT):
        assert verdict(settings, wish=wish, pressure=pressure, num_live=1, local=local).aim is aim


def test_loan_for_a_while_ends_by_itself() -> None:
    lent = verdict(PINNED, wish=Wish.YIELD, wish_until=1010.0)
    assert (lent.aim, lent.look_in_s) == (Aim.YIELDED, 10.0)
    assert verdict(PINNED, wish=Wish.YIELD, wish_until=1010.0, now=1010.0).aim is Aim.RESIDENT


# ---- keep_alive ------------------------------------------------------------------------------------------


def test_nobody_needs_it_who_never_asked() -> None:
    assert Needs(900.0).until == -math.inf


def test_need_lasts_from_the_end_of_a_request_as_the_settings_say() -> None:
    needs = Needs(900.0)
    needs.came("anna", 0.0)
    needs.ended("anna", 100.0)
    assert needs.until == 1000.0


@pytest.mark.parametrize(("keep_s", "until"), [(0.0, 100.0), (3600.0, 3700.0), (math.inf, math.inf)])
def test_wish_of_a_request_counts_from_its_end(keep_s: float, until: float) -> None:
    needs = Needs(900.0)
    needs.came("anna", 0.0, keep_s)
    needs.ended("anna", 100.0)
    assert needs.until == until


def test_wish_takes_back_the_same_sources_only() -> None:
    needs = Needs(900.0)
    needs.came("anna", 0.0, math.inf)
    needs.came("ben", 0.0, 0.0)
    assert needs.until == math.inf
    needs.came("anna", 10.0)
    assert needs.until == 910.0


def test_sources_of_long_ago_are_forgotten() -> None:
    needs = Needs(10.0)
    for number in range(1000):
        needs.came(f"source {number}", 3600.0 * number)
    assert len(needs._until) == len(needs._keep_s) < 100
