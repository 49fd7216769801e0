"""H9, H10: every way of saying how long the model is to stay."""

from __future__ import annotations

import math

import pytest

from homeai.errors import InvalidRequest
from homeai.server.keep_alive import keep_alive_s


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (0.5, 0.5),
        (300, 300),
        ("0", 0),
        ("300", 300),
        ("0s", 0),
        ("5m", 300),
        ("24h", 86400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1500ms", 1.5),
        ("+5m", 300),
        (" 5m ", 300),
        ("1h2m3.5s", 3723.5),
    ],
)
def test_seconds_and_durations_are_read(value: object, seconds: float) -> None:
    assert keep_alive_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [-1, -1.0, -0.5, "-1", "-1s", "-1m", "-2m", "-1h30m", 10**400, math.inf])
def test_negative_or_endless_means_for_good(value: object) -> None:
    assert keep_alive_s(value) == math.inf


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "5 m",
        "5x",
        "m",
        "1h30",
        "--1",
        "1e3",
        "٣",
        "5m;",
        "inf",
        "nan",
        math.nan,
        True,
        [],
        {},
        [5],
        "9" * 99999 + "x",
    ],
)
def test_anything_else_is_a_mistake_that_names_the_field(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^keep_alive: ") as raised:
        keep_alive_s(value)
    assert (raised.value.param, len(raised.value.message) < 200) == ("keep_alive", True)
