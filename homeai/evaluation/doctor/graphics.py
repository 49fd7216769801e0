"""NVIDIA cards as the bus, the device files and the driver tell of them. One look; nothing is kept open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from homeai.evaluation.doctor.facts import GPUHealth, Graphics
from homeai.evaluation.doctor.permissions import User, problem_of

T = TypeVar("T")

PCI: Final = Path("/sys/bus/pci/devices")
NVIDIA: Final = "0x10de"
DISPLAY: Final = "0x03"  # PCI's class of display controllers
REASONS: Final = {  # NVML's bits of what slows a clock down
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


def graphics(user: User) -> Graphics:
    """`user`: who the daemon runs as."""
    on_bus = cards(PCI)
    health, error = _nvml()
    if health is not None and not on_bus:
        on_bus = [health.name]  # a container may not see the bus
    nodes = [str(node) for node in sorted(Path("/dev").glob("nvidia[0-9]*")) if problem_of(node, user, writes=True)]
    return Graphics(
        on_bus=on_bus,
        driver_error=error if on_bus else None,
        module_loaded=Path("/proc/driver/nvidia/version").exists(),
        unusable_nodes=nodes,
        health=health,
    )


def cards(root: Path) -> list[str]:
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else ():
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == NVIDIA and kind.startswith(DISPLAY):
                found.append(f"NVIDIA {(device / 'device').read_text().strip()} at {device.name}")
    return found


def reasons_of(bits: int) -> list[str]:
    return [name for bit, name in REASONS.items() if bits & bit]


def _nvml() -> tuple[GPUHealth | None, str | None]:
    """The first card's health, or the driver's error."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # NVML raises its own error, or ctypes' when the library is missing
        return None, str(error)
    try:
        return _health(pynvml), None
    except Exception as error:
        return None, str(error)
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()


def _health(nvml: Any) -> GPUHealth:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)

    def told(ask: Callable[[], T]) -> T | None:
        """Cards tell different things."""
        try:
            return ask()
        except nvml.NVMLError:
            return None

    bits = told(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    limit = told(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3)
    return GPUHealth(
        name=str(nvml.nvmlDeviceGetName(handle)),
        throttled=reasons_of(bits or 0),
        temperature=told(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        slowdown_temperature=told(
            lambda: int(nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN))
        ),
        power_w=told(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
        power_limit_w=limit,
        default_power_limit_w=told(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3),
        clock_mhz=told(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        max_clock_mhz=told(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
    )
