"""Energy that this machine's GPU, or else its processor, has used so far. None where it does not tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

RAPL = Path("/sys/class/powercap")

Meter = Callable[[], float | None]  # joules, counting up


def meter() -> tuple[str, Meter] | None:
    """What is measured, and the meter."""
    return _nvml() or _rapl(RAPL)


def _nvml() -> tuple[str, Meter] | None:
    with contextlib.suppress(Exception):  # no library, no driver, or a card that does not tell
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return "GPU", lambda: _joules(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    return None


def _rapl(root: Path) -> tuple[str, Meter] | None:
    """Intel's and AMD's packages; most systems let only root read them."""
    files = sorted(root.glob("intel-rapl:[0-9]/energy_uj"))
    meters = [_Package(file) for file in files]
    if not meters or any(each.joules() is None for each in meters):
        return None
    return "processor", lambda: sum(each.joules() or 0.0 for each in meters)


class _Package:
    """A counter that starts over at its maximum."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last: int | None = None
        self._total = 0

    def joules(self) -> float | None:
        try:
            now = int(self._file.read_text())
            if self._last is not None and now < self._last:
                self._total += int(self._file.with_name("max_energy_range_uj").read_text())
        except (OSError, ValueError):
            return None
        self._last = now
        return (self._total + now) / 1e6


def _joules(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except Exception:  # the driver's own error
        return None
