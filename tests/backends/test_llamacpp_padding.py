"""How many rows a pass has, as measured."""

from __future__ import annotations

from homeai.backends.llamacpp.padding import RETRY_AFTER, Padding


def run(padding: Padding, num_rows: int, seconds: dict[int, float]) -> int:
    num_computed = padding.padded(num_rows)
    padding.observe(num_computed, seconds[num_computed])
    return num_computed


def test_both_ways_are_tried_and_the_faster_one_stays() -> None:
    padding = Padding(16)
    assert [run(padding, 7, {7: 0.055, 8: 0.038}) for _ in range(5)] == [7, 8, 8, 8, 8]
    assert [run(padding, 2, {2: 0.022, 4: 0.032}) for _ in range(5)] == [2, 4, 2, 2, 2]


def test_slower_way_is_measured_again() -> None:
    padding = Padding(16)
    for _ in range(2):
        run(padding, 6, {6: 0.03, 8: 0.05})
    used = [run(padding, 6, {6: 0.03, 8: 0.02}) for _ in range(3 * RETRY_AFTER)]
    assert used[0] == 6
    assert used[-1] == 8


def test_one_row_whole_groups_and_what_does_not_fit_stay_as_they_are() -> None:
    padding = Padding(8)
    assert [padding.padded(n) for n in (1, 4, 8, 9, 16) for _ in range(3)] == [1] * 3 + [4] * 3 + [8] * 3 + [9] * 3 + [
        16
    ] * 3
