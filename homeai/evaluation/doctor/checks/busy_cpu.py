"""Other programs keep the CPUs busy that the model computes on."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import seconds

TAKEN: Final = 0.5  # of the machine's CPUs
MIN_BUSY_S: Final = 5.0


def check(facts: Facts) -> Finding | None:
    """Only where that costs somebody something: the model is on the CPU, and was asked lately."""
    machine, window = facts.machine, facts.window
    if machine is None or window is None or facts.on_gpu or window.busy_s < MIN_BUSY_S:
        return None
    if machine.others_cpus < TAKEN * machine.num_cpus or not machine.others:
        return None
    names = ", ".join(f"{busy.name} ({busy.pid}) {busy.num_cpus:.1f}" for busy in machine.others[:3])
    return Finding(
        check="busy-cpu",
        title="Other programs take the CPUs that the model computes on",
        evidence=[
            f"others keep {machine.others_cpus:.1f} of {machine.num_cpus} CPUs busy (up to "
            f"{TAKEN * machine.num_cpus:.1f} is usual): {names}",
            f"a step of the model takes {seconds(window.mean_step_s)} on average, {window.busy_s:,.0f} s with work "
            "lately",
        ],
        cause="Each of the model's threads waits for the slowest of them.",
        advice=[
            "End them, or run them at a lower priority (nice, or CPUWeight of their slice), or give the model fewer "
            "threads than there are CPUs."
        ],
        settings={"model.num_threads": str(max(1, machine.num_cpus - round(machine.others_cpus)))},
    )
