"""What the machine has, on any machine."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from homeai.hardware import GPU, GPUProcess, MachineProbe, num_physical_cores

# ---- memory --------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_machine() -> None:
    memory = MachineProbe().memory()
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_resident_memory_is_that_of_the_process() -> None:
    probe = MachineProbe()
    assert probe.rss_bytes() > 2**20
    assert probe.rss_bytes(os.getpid()) > 2**20


def test_process_that_is_gone_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert MachineProbe().rss_bytes(process.pid) == 0


# ---- cores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("physical", "allowed", "threads"),
    [
        (8, 16, 8),  # hyper-threads are not counted
        (8, 2, 2),  # what this process may use
        (None, 4, 4),  # a machine that does not say
        (1, 1, 1),
    ],
)
def test_threads_are_the_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, physical: int | None, allowed: int, threads: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(allowed)))
    assert num_physical_cores() == threads


# ---- GPU -----------------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


class FakeNVML:
    """pynvml with one GPU, in as much trouble as a test wants."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.has_driver = True
        self.has_fallen_off = False
        self.has_screen = True
        self.is_idle = False

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.has_fallen_off:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=20, total=140)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        if self.has_fallen_off:
            raise NVMLError("GPU is lost")
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=7), SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        if not self.has_screen:
            raise NVMLError("not supported")
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=7)]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[SimpleNamespace]:
        if self.is_idle:
            raise NVMLError("not found")
        return [SimpleNamespace(pid=os.getpid(), smUtil=25, timeStamp=since + 1)]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNVML:
    fake = FakeNVML()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_gpu_is_read(nvml: FakeNVML) -> None:
    assert MachineProbe().gpu() == GPU("NVIDIA H200", 20, 140, 0.5)


def test_machine_without_a_driver_has_no_gpu(nvml: FakeNVML) -> None:
    nvml.has_driver = False
    assert MachineProbe().gpu() is None


def test_machine_without_the_library_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert MachineProbe().gpu() is None


def test_gpu_that_is_lost_is_none_until_it_is_back(nvml: FakeNVML) -> None:
    probe = MachineProbe()
    nvml.has_fallen_off = True
    assert probe.gpu() is None
    nvml.has_fallen_off = False
    assert probe.gpu() is not None


@pytest.mark.parametrize("has_screen", [True, False])
@pytest.mark.parametrize("is_idle", [True, False])
def test_processes_on_the_gpu_are_told_once_each(nvml: FakeNVML, has_screen: bool, is_idle: bool) -> None:
    """Some are of another container: only their number is known, and maybe not how much they hold."""
    nvml.has_screen, nvml.is_idle = has_screen, is_idle
    me, stranger = MachineProbe().gpu_processes() or []
    assert me == GPUProcess(os.getpid(), psutil.Process().name(), 7, 0.0 if is_idle else 0.25)
    assert stranger == GPUProcess(2**22 + 1, "a program", 0, 0.0)


def test_processes_of_a_gpu_that_is_lost_are_not_known(nvml: FakeNVML) -> None:
    nvml.has_fallen_off = True
    assert MachineProbe().gpu_processes() is None
    nvml.has_driver = False
    assert MachineProbe().gpu_processes() is None
