"""What Python loads first when this folder is in PYTHONPATH: a front end on a machine with a GPU that it reads from
the file that $TEST_GPU names: {"used": GiB, "total": GiB, "processes": [[pid, name, GiB, load], …]}. `homeai doctor`
finds what the file's "doctor" says of cards and driver, and a llama.cpp built as "has_cuda" says."""

import json
import os
import sys
from pathlib import Path

if "serve" in sys.orig_argv and (path := os.environ.get("TEST_GPU")):
    from homeai.hardware import GPU, GPUProcess, MachineProbe

    GIB = 2**30

    def read():
        return json.loads(Path(path).read_text())

    def gpu(self):
        state = read()
        return GPU("Test GPU", int(state["used"] * GIB), int(state["total"] * GIB), 0.5)

    def gpu_processes(self):
        return [GPUProcess(pid, name, int(used * GIB), load) for pid, name, used, load in read()["processes"]]

    MachineProbe.gpu, MachineProbe.gpu_processes = gpu, gpu_processes

if "doctor" in sys.orig_argv and (path := os.environ.get("TEST_GPU")):
    from homeai.evaluation.doctor import facts, graphics, machine

    told = json.loads(Path(path).read_text())
    health = facts.GPUHealth(**told["doctor"].pop("health")) if "health" in told["doctor"] else None
    graphics.graphics = lambda user: facts.Graphics(**told["doctor"], health=health)
    machine.build = lambda: facts.Build(told.get("has_cuda", True), "0.3.36")
