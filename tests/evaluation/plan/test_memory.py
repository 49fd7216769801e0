"""The plan's memory against a model that is really loaded: llama.cpp's own figures, and what the process grows by."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, msgspec
from pathlib import Path
from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.runner import preview
from homeai.config import Config
from homeai.evaluation.plan.measure import StepMeter
from homeai.hardware import MachineProbe
from homeai.server.launch import engine_config

path, kv_type = Path(sys.argv[1]), sys.argv[2]
config = msgspec.structs.replace(engine_config(Config(), path), num_threads=1, kv_type=kv_type, max_drafts=0)
rss = MachineProbe().rss_bytes
at_first = rss()
vocabulary = Model(path, vocab_only=True)  # the loaded model has one, too: it is no part of weights, KV and buffers
with_vocabulary = rss()
meter = StepMeter(config, 1)
assert meter.prefill(256)  # every buffer was used once
grown = rss() - with_vocabulary - (with_vocabulary - at_first)
need, runner = preview(config).needs.host, meter.runner
print(json.dumps([need.weights, need.kv, need.compute, runner.model_bytes, runner.kv_bytes, grown]))
"""


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_loaded_model_takes_what_was_planned_within_a_twentieth(kv_type: str, model_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model_path), kv_type]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    weights, kv, compute, model_bytes, kv_bytes, grown = json.loads(out)
    assert weights == pytest.approx(model_bytes, rel=0.001)
    assert kv == pytest.approx(kv_bytes, rel=0.001)
    assert weights + kv + compute == pytest.approx(grown, rel=0.05)
