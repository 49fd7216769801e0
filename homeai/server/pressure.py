"""Do other programs need the GPU? Decided from what they hold of it, with hysteresis.

Pure: `see` gets a reading now and then. What others held at first, or when it was over last time, is theirs, and is no
obstacle; what they take beyond that counts. It begins when it lasted `gpu_notice_s`, so that a thumbnail does not send
the model away, and ends when it was quiet for `gpu_quiet_s`, so that a game's loading screens do not bring it back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from homeai.config import ResidencyConfig
from homeai.hardware import GPU, GPUProcess

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Reading:
    """What others hold of a GPU, and what nobody holds. `load` is the part of its time that others keep it busy."""

    others_bytes: int
    free_bytes: int
    load: float
    biggest: str  # of the others, for people


def reading_of(gpu: GPU, processes: Sequence[GPUProcess], ours: Collection[int]) -> Reading:
    others = [process for process in processes if process.pid not in ours]
    biggest = max(others, key=lambda process: process.used_bytes, default=None)
    return Reading(
        others_bytes=sum(process.used_bytes for process in others),
        free_bytes=max(0, gpu.total_bytes - gpu.used_bytes),
        load=min(1.0, sum(process.utilisation for process in others)),
        biggest=f"{biggest.name} ({biggest.pid})" if biggest else "nobody",
    )


class Pressure:
    """`reason` says why others need the device; None while they do not."""

    def __init__(self, settings: ResidencyConfig) -> None:
        self._settings = settings
        self._base_bytes: int | None = None  # what others may hold: the least since it was over last time
        self._others_bytes = 0  # as seen last
        self._had_room = False  # since then: free memory was above its limit
        self._our_bytes = 0  # that come free when the model goes
        self._is_load_accepted = False  # how busy others keep the GPU, until they do not any more
        self._since: float | None = None  # of what would change `reason` if it lasts
        self.reason: str | None = None

    @property
    def others_bytes(self) -> int | None:
        """What others hold of the GPU, as seen last; None before the first look."""
        return None if self._base_bytes is None else self._others_bytes

    @property
    def is_ending(self) -> bool:
        """Others are quiet again, and it is being seen whether that lasts."""
        return self.reason is not None and self._since is not None

    @property
    def ends_in_s(self) -> float:
        """What remains at least, as far as anybody can know."""
        return self._settings.gpu_quiet_s

    def see(self, reading: Reading, now: float, *, our_bytes: int | None) -> bool:
        """Whether `reason` changed. `our_bytes`: the resident model's, None when it is not resident."""
        if our_bytes is None:
            self._had_room = False
        else:
            self._our_bytes = our_bytes
        self._others_bytes = reading.others_bytes
        if self._base_bytes is None or reading.others_bytes < self._base_bytes:
            self._base_bytes = reading.others_bytes
        cause = self._cause(reading, is_resident=our_bytes is not None)
        if our_bytes is not None and not self._is_short(reading.free_bytes):
            self._had_room = True
        if (cause is None) == (self.reason is None):
            self._since = None
            return False
        if self._since is None:
            self._since = now
        lasts_s = self._settings.gpu_notice_s if self.reason is None else self._settings.gpu_quiet_s
        if now - self._since < lasts_s:
            return False
        if cause is None:
            self.accept()
        self.reason, self._since, self._had_room = cause, None, False
        return True

    def accept(self) -> None:
        """The owner, or the end of a pause, says so: what others hold and do now is no obstacle."""
        self._base_bytes = self._others_bytes
        self._is_load_accepted = True
        self._had_room = False
        self.reason, self._since = None, None

    def _cause(self, reading: Reading, *, is_resident: bool) -> str | None:
        settings, base = self._settings, self._base_bytes or 0
        taken = reading.others_bytes - base
        limit = settings.max_other_gpu_gb
        if limit is not None and taken > limit * GIB:
            before = f" more than before, {reading.others_bytes / GIB:.1f} GiB in all" if base else ""
            return (
                f"other programs took {taken / GIB:.1f} GiB of the GPU{before} > {limit:g} GiB allowed "
                f"(residency.max_other_gpu_gb); most of it has {reading.biggest}"
            )
        short = self._is_short(reading.free_bytes - (0 if is_resident else self._our_bytes))
        if short and (self._had_room or self.reason is not None):
            return (
                f"the GPU has {reading.free_bytes / GIB:.1f} GiB free < {settings.min_free_gpu_gb:g} GiB wanted "
                f"(residency.min_free_gpu_gb); most of it has {reading.biggest}"
            )
        is_busy = settings.max_other_gpu_load is not None and reading.load > settings.max_other_gpu_load
        self._is_load_accepted = self._is_load_accepted and is_busy
        if is_busy and not self._is_load_accepted:
            return (
                f"other programs keep the GPU busy for {reading.load:.0%} of the time > "
                f"{settings.max_other_gpu_load:.0%} allowed (residency.max_other_gpu_load)"
            )
        return None

    def _is_short(self, free_bytes: int) -> bool:
        limit = self._settings.min_free_gpu_gb
        return limit is not None and free_bytes < limit * GIB
