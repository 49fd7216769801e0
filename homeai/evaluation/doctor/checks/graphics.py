"""There is an NVIDIA card, and the model does not use it: a build without CUDA, or a driver in trouble."""

from __future__ import annotations

from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding


def check_build(facts: Facts) -> Finding | None:
    machine, config = facts.machine, facts.config
    if machine is None or machine.build is None or machine.build.has_cuda or not machine.graphics.on_bus:
        return None
    if config is not None and (config.model.device == "cpu" or config.model.backend == "torch"):
        return None
    if facts.on_gpu:
        return None
    device = facts.status.model.device if facts.status else None
    return Finding(
        check="no-cuda",
        title="There is an NVIDIA GPU, and this llama.cpp cannot use it",
        evidence=[
            f"on the bus: {', '.join(machine.graphics.on_bus)}",
            f"llama-cpp-python {machine.build.version} was built without CUDA (no libggml-cuda beside it)"
            + (f"; the model runs on {device}" if device else ""),
        ],
        cause="It was built where the CUDA toolkit (nvcc) was not found.",
        advice=[
            "Install the CUDA toolkit, then build it anew: `CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall "
            f"--no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={machine.build.version}` (scripts/serve "
            "does so in a new virtual environment).",
            "If the CPU is meant: model.device: cpu says so, and this is not said again.",
        ],
        settings={},
    )


def check_driver(facts: Facts) -> Finding | None:
    machine, config = facts.machine, facts.config
    if machine is None or (config is not None and config.model.device == "cpu"):
        return None
    graphics = machine.graphics
    if not graphics.on_bus or (graphics.driver_error is None and not graphics.unusable_nodes):
        return None
    cause, advice = _told(facts)
    return Finding(
        check="driver",
        title="The NVIDIA driver does not work",
        evidence=[
            f"on the bus: {', '.join(graphics.on_bus)}",
            f"kernel module: {'loaded' if graphics.module_loaded else 'not loaded'}",
            *([f"NVML: {graphics.driver_error}"] if graphics.driver_error else []),
            *(f"{node}: may not be opened" for node in graphics.unusable_nodes),
        ],
        cause=cause,
        advice=advice,
    )


def _told(facts: Facts) -> tuple[str, list[str]]:
    assert facts.machine is not None, "checked before"
    graphics = facts.machine.graphics
    error = (graphics.driver_error or "").lower()
    if "mismatch" in error:
        return (
            "The driver was updated, and the kernel still runs the old one.",
            ["Restart the machine (or unload the nvidia modules and load them again)."],
        )
    if graphics.driver_error is None:
        return (
            "Its device files are not for this user.",
            [
                "Add the daemon's user to the group of the files (often video or render), or "
                "DeviceAllow=char-nvidia* rwm."
            ],
        )
    if not graphics.module_loaded:
        return (
            "The driver's kernel module is not loaded: none is installed, or not for this kernel, or Secure Boot "
            "refuses it.",
            ["Install NVIDIA's driver for this kernel; `dmesg | grep -i nvidia` says why it does not load."],
        )
    return (
        "The card or its driver is in trouble.",
        [
            "`nvidia-smi` and `dmesg | grep -iE 'nvrm|xid'` say more; a restart often helps, a card that falls off "
            "the bus does not."
        ],
    )
