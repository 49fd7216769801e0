"""What Python loads first when this folder is in PYTHONPATH: an engine child with a fault in its runner.

$TEST_FAULT names it: "abort" ends the process as a failed assertion in llama.cpp does, "error" is an error of
the device. It strikes at every step that computes a prompt which begins with the poison.
"""

import os
import sys

POISON = [2, 1234, 1234, 1234]

if "homeai.engine.process" in sys.orig_argv and (fault := os.environ.get("TEST_FAULT")):
    from homeai.engine.engine import Engine

    init = Engine.__init__

    def faulty_init(self, scheduler, runner, clock):
        init(self, scheduler, runner, clock)
        execute = runner.execute

        def faulty(plan):
            for chunk in plan.chunks:
                if runner._live[chunk.request_id].tokens.slice(0, len(POISON)).tolist() == POISON:
                    if fault == "abort":
                        os.abort()
                    raise RuntimeError("the device is broken")
            return execute(plan)

        runner.execute = faulty

    Engine.__init__ = faulty_init
