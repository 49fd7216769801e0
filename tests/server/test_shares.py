"""What each source had of the service, beside what it is due."""

from __future__ import annotations

from homeai.messages import Served
from homeai.server.shares import MAX_SHARES, shares_of
from homeai.status import ShareStatus

WEIGHTS = {"voice": 3.0, "background": 1.0}


def test_classes_share_by_weight_and_the_sources_of_one_alike() -> None:
    served = [Served("background", "night", 600.0), Served("voice", "kitchen", 300.0), Served("voice", "hall", 100.0)]
    assert shares_of(served, WEIGHTS, set()) == [
        ShareStatus("night", "background", served=0.6, due=0.25),
        ShareStatus("kitchen", "voice", served=0.3, due=0.375),
        ShareStatus("hall", "voice", served=0.1, due=0.375),
    ]


def test_who_asks_and_was_not_served_is_due_its_part() -> None:
    shares = shares_of([Served("background", "night", 1.0)], WEIGHTS, {("voice", "kitchen")})
    assert shares == [ShareStatus("night", "background", 1.0, 0.25), ShareStatus("kitchen", "voice", 0.0, 0.75)]


def test_crumbs_of_who_does_not_ask_any_more_are_not_shown() -> None:
    served = [Served("background", "night", 1e6), Served("voice", "kitchen", 1.0)]
    assert [share.source for share in shares_of(served, WEIGHTS, set())] == ["night"]


def test_nothing_served_is_nothing_to_show() -> None:
    assert shares_of([], WEIGHTS, set()) == []


def test_it_is_bounded() -> None:
    assert len(shares_of([Served("voice", f"s{i}", 1.0) for i in range(99)], WEIGHTS, set())) == MAX_SHARES
