"""What Python loads first when this folder is in PYTHONPATH: a front end on a machine with a GPU that it reads from
the file that $TEST_GPU names: {"used": GiB, "total": GiB, "processes": [[pid, name, GiB, load], …]}."""

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
