"""What this machine has and how much of it is in use. One protocol, so that tests can have any machine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

import psutil


@dataclass(frozen=True, slots=True)
class GPU:
    name: str
    used_bytes: int
    total_bytes: int
    utilisation: float  # 0…1


@dataclass(frozen=True, slots=True)
class GPUProcess:
    """Who uses the GPU: how much of its memory, and which part of its time (0…1) lately."""

    pid: int
    name: str
    used_bytes: int
    utilisation: float


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    available_bytes: int


class Probe(Protocol):
    def memory(self) -> Memory: ...

    def gpu(self) -> GPU | None:
        """The first GPU, or None: no GPU, no driver, or a driver in trouble."""
        ...

    def gpu_processes(self) -> list[GPUProcess] | None:
        """All who use the first GPU, ourselves too; None when that cannot be known."""
        ...

    def rss_bytes(self, pid: int | None = None) -> int:
        """Resident memory of a process (default: this one); 0 when it is gone."""
        ...


class MachineProbe:
    """psutil and NVML. NVML is opened once, if it is there at all."""

    def __init__(self) -> None:
        self._nvml = _open_nvml()

    def memory(self) -> Memory:
        memory = psutil.virtual_memory()
        return Memory(memory.total, memory.available)

    def gpu(self) -> GPU | None:
        return self._nvml.read() if self._nvml else None

    def gpu_processes(self) -> list[GPUProcess] | None:
        return self._nvml.processes() if self._nvml else None

    def rss_bytes(self, pid: int | None = None) -> int:
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return 0


class _NVML:
    def __init__(self) -> None:
        import pynvml

        self._api = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._name = str(pynvml.nvmlDeviceGetName(self._handle))
        self._seen_at = 0  # microseconds, as NVML tells it

    def read(self) -> GPU | None:
        try:
            memory = self._api.nvmlDeviceGetMemoryInfo(self._handle)
            busy = self._api.nvmlDeviceGetUtilizationRates(self._handle)
        except self._api.NVMLError:
            return None
        return GPU(self._name, int(memory.used), int(memory.total), busy.gpu / 100)

    def processes(self) -> list[GPUProcess] | None:
        """A process that draws and computes is listed twice, with the same memory."""
        try:
            running = self._api.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._api.NVMLError:
            return None
        with contextlib.suppress(self._api.NVMLError):  # cards without a screen do not draw
            running = [*running, *self._api.nvmlDeviceGetGraphicsRunningProcesses(self._handle)]
        used = {int(process.pid): int(process.usedGpuMemory or 0) for process in running}
        busy = self._busy()
        return [GPUProcess(pid, _process_name(pid), num_bytes, busy.get(pid, 0.0)) for pid, num_bytes in used.items()]

    def _busy(self) -> dict[int, float]:
        """Which part of the time since the last call each process kept it busy; empty when nobody did, or none tell."""
        try:
            samples = self._api.nvmlDeviceGetProcessUtilization(self._handle, self._seen_at)
        except self._api.NVMLError:
            return {}
        self._seen_at = max((int(sample.timeStamp) for sample in samples), default=self._seen_at)
        return {int(sample.pid): sample.smUtil / 100 for sample in samples}


def _process_name(pid: int) -> str:
    """As people know it; of another container nothing but its number is known."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a program"


def _open_nvml() -> _NVML | None:
    try:
        return _NVML()
    except Exception:  # NVML raises its own error, or ctypes' when the library is missing
        return None


def num_physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted: more threads than that only wait for each other."""
    allowed = len(psutil.Process().cpu_affinity())
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
