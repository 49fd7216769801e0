"""Other programs on the GPU: what is too much, for how long, and when it is over."""

from __future__ import annotations

import pytest

from homeai.config import ResidencyConfig
from homeai.hardware import GPU, GPUProcess
from homeai.server.pressure import GIB, Pressure, Reading, reading_of

OURS = 8 * GIB


def gib(others: float, free: float = 20, load: float = 0.0) -> Reading:
    return Reading(int(others * GIB), int(free * GIB), load, "game (7)")


class Watch:
    """Looks every second at what the test says."""

    def __init__(self, **settings: object) -> None:
        self.pressure = Pressure(ResidencyConfig(gpu_notice_s=3.0, gpu_quiet_s=60.0, **settings))  # type: ignore[arg-type]
        self.now = 0.0
        self.our_bytes: int | None = OURS

    def see(self, reading: Reading, seconds: int = 1) -> str | None:
        for _ in range(seconds):
            self.pressure.see(reading, self.now, our_bytes=self.our_bytes)
            self.now += 1.0
        return self.pressure.reason


def test_reading_leaves_out_our_own_processes() -> None:
    processes = [GPUProcess(1, "us", 8, 0.5), GPUProcess(2, "game", 5, 0.2), GPUProcess(3, "desk", 1, 0.1)]
    reading = reading_of(GPU("H200", 14, 100, 0.8), processes, {1})
    assert reading == Reading(6, 86, pytest.approx(0.3), "game (2)")
    assert reading_of(GPU("H200", 14, 100, 0.8), [], {1}) == Reading(0, 86, 0.0, "nobody")


def test_what_others_hold_is_known_from_the_first_look_on() -> None:
    watch = Watch()
    assert watch.pressure.others_bytes is None
    watch.see(gib(5))
    assert watch.pressure.others_bytes == 5 * GIB
    watch.see(gib(0))
    assert watch.pressure.others_bytes == 0


def test_what_lasts_is_pressure_and_says_who_it_is() -> None:
    watch = Watch()
    assert watch.see(gib(0)) is None
    assert watch.see(gib(5), seconds=3) is None
    reason = watch.see(gib(5))
    assert reason is not None
    for words in ("5.0 GiB", "> 4 GiB", "max_other_gpu_gb", "game (7)"):
        assert words in reason


def test_what_passes_is_not() -> None:
    watch = Watch()
    for _ in range(20):
        assert watch.see(gib(5), seconds=2) is None
        assert watch.see(gib(1)) is None


def test_neighbours_that_were_there_before_do_not_count() -> None:
    watch = Watch()
    assert watch.see(gib(30), seconds=10) is None
    assert watch.see(gib(33.9), seconds=10) is None
    assert watch.see(gib(34.5), seconds=10) is not None


def test_neighbour_that_leaves_and_comes_back_counts() -> None:
    watch = Watch()
    watch.see(gib(30), seconds=10)
    watch.see(gib(0), seconds=10)
    assert watch.see(gib(30), seconds=10) is not None


def test_what_is_there_when_it_ends_is_a_neighbour_then() -> None:
    watch = Watch()
    watch.see(gib(0))
    watch.see(gib(10), seconds=5)
    watch.our_bytes = None
    assert watch.see(gib(3.9), seconds=61) is None
    assert watch.see(gib(7.8), seconds=10) is None  # 3.9 more than then
    assert watch.see(gib(8), seconds=10) is not None


def test_what_the_owner_accepts_is_no_pressure() -> None:
    watch = Watch()
    watch.see(gib(0))
    watch.see(gib(10), seconds=5)
    watch.pressure.accept()
    assert watch.see(gib(10), seconds=61) is None
    assert watch.see(gib(20), seconds=5) is not None, "but more is"


def test_how_busy_it_is_may_be_accepted_until_it_was_not() -> None:
    watch = Watch(max_other_gpu_load=0.5)
    assert watch.see(gib(0, load=0.9), seconds=5) is not None
    watch.pressure.accept()
    assert watch.see(gib(0, load=0.9), seconds=61) is None
    watch.see(gib(0, load=0.1))
    assert watch.see(gib(0, load=0.9), seconds=5) is not None


def test_short_memory_does_not_end_a_load_that_the_owner_wants() -> None:
    watch = Watch(max_other_gpu_gb=None, min_free_gpu_gb=2.0)
    watch.see(gib(0, free=4))
    watch.see(gib(3, free=1), seconds=5)
    watch.our_bytes = None
    watch.pressure.accept()
    assert watch.see(gib(3, free=9), seconds=61) is None


def test_it_ends_when_it_was_quiet_for_long_without_a_break() -> None:
    watch = Watch()
    watch.see(gib(0))
    watch.see(gib(10), seconds=5)
    watch.our_bytes = None
    assert watch.see(gib(1), seconds=59) is not None
    assert watch.pressure.is_ending
    assert watch.see(gib(10), seconds=2) is not None
    assert not watch.pressure.is_ending
    assert watch.see(gib(1), seconds=60) is not None
    assert watch.see(gib(1)) is None


def test_free_memory_that_falls_is_pressure_and_must_be_there_again_beside_the_model() -> None:
    watch = Watch(max_other_gpu_gb=None, min_free_gpu_gb=2.0)
    watch.see(gib(0, free=4))
    assert watch.see(gib(3, free=1), seconds=5) is not None
    watch.our_bytes = None
    assert watch.see(gib(3, free=9), seconds=100) is not None  # our 8 GiB came free, and the model needs them
    assert watch.see(gib(1, free=11), seconds=61) is None


def test_free_memory_that_was_always_short_is_as_the_owner_wants_it() -> None:
    watch = Watch(max_other_gpu_gb=None, min_free_gpu_gb=2.0)
    assert watch.see(gib(0, free=1), seconds=100) is None


def test_busy_gpu_is_pressure_if_that_is_wanted() -> None:
    assert Watch().see(gib(0, load=1.0), seconds=100) is None
    reason = Watch(max_other_gpu_load=0.5).see(gib(0, load=0.9), seconds=5)
    assert reason is not None
    assert "90%" in reason


def test_limits_may_all_be_off() -> None:
    assert Watch(max_other_gpu_gb=None).see(gib(100, free=0, load=1.0), seconds=100) is None
