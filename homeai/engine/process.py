"""Entry point of the engine child. The only place that picks a backend.

    inbox thread  ── messages ──▶ ┌──────────┐ ── tokens ──▶ socket's buffer
    (socket → queue)              │ the loop │               (outbox thread: only what does not fit)
                                  └──────────┘

The loop alone touches scheduler, runner and llama.cpp. Tokens leave as they are drawn, so the front end writes
them to clients while the loop draws the others and the next step computes. The child ends when its socket
closes: memory on the device goes back whatever happened to the parent.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import BinaryIO

import homeai.logs
from homeai.backends import torch as torch_backend
from homeai.backends.choice import backend_of
from homeai.clock import MonotonicClock, process_age_s
from homeai.engine.engine import Engine
from homeai.engine.loop import EngineLoop
from homeai.engine.runner import Load, RunnerLimits
from homeai.engine.wire import Inbox, Outbox
from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.messages import EngineConfig, EngineFailed, EngineReady, LoadModel, LoadProgress
from homeai.scheduling.cache import CacheConfig
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.scheduler import Scheduler

log = logging.getLogger("homeai.engine")

ENV_STEP_LOG = "HOMEAI_STEP_LOG"
LOAD_STAGE = "weights"
CPU_KEPT_PART = 8  # of the cells: on a CPU every step pays for the cells in use, whoever they belong to


def main() -> None:
    parser = argparse.ArgumentParser(prog="homeai-engine")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="text")
    args = parser.parse_args()
    homeai.logs.setup(args.log_level, args.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches both: the front end drains
    sock = socket.socket(fileno=args.fd)
    outbox = Outbox(sock)
    inbox = Inbox(sock, on_close=lambda: os._exit(0))
    try:
        serve(inbox, outbox)
    except ModelLoadError as error:
        outbox.put(EngineFailed(str(error), fatal=True))
    except DeviceUnavailable as error:
        outbox.put(EngineFailed(str(error), fatal=False, unavailable=True))
    except Exception as error:
        log.exception("the engine is broken and ends")
        outbox.put(EngineFailed(f"{type(error).__name__}: {error}", fatal=False))
    outbox.close()
    os._exit(0)  # llama.cpp's static destructors may touch what the driver already took


def serve(inbox: Inbox, outbox: Outbox) -> None:
    message = inbox.get(60.0)
    assert isinstance(message, LoadModel), "the first message says what to load"
    engine = load(message.config, outbox)
    gc.collect()
    gc.freeze()  # what is loaded now stays: no collection needs to look at it again
    with open_step_log() as step_log:
        heartbeat_interval_s = message.config.heartbeat_interval_s
        EngineLoop(engine, inbox, outbox, heartbeat_interval_s=heartbeat_interval_s, step_log=step_log).run()
    engine.runner.close()


def open_step_log() -> contextlib.AbstractContextManager[BinaryIO | None]:
    """The file that $HOMEAI_STEP_LOG names, written line by line."""
    path = os.environ.get(ENV_STEP_LOG)
    return Path(path).open("ab", buffering=0) if path else contextlib.nullcontext()


def load(config: EngineConfig, outbox: Outbox) -> Engine:
    """Make the engine that `config` describes, reporting progress, and say that it is ready."""
    load_runner = loader(config)
    imports_s, started_at = process_age_s(), time.monotonic()
    read_at = started_at  # the last of the weights
    last = -1

    def on_progress(fraction: float) -> None:
        nonlocal last, read_at
        read_at = time.monotonic()
        if int(fraction * 50) > last:
            last = int(fraction * 50)
            outbox.put(LoadProgress(LOAD_STAGE, fraction))

    runner = load_runner(config, on_progress)
    made_at = time.monotonic()
    outbox.put(LoadProgress("warm-up", 1.0))
    runner.warm_up()
    warm_at = time.monotonic()
    limits = runner.limits
    scheduler = Scheduler(scheduler_config(runner.config, limits, device=runner.device))
    outbox.put(
        EngineReady(
            num_kv_cells=limits.num_kv_cells,
            max_model_len=limits.max_model_len,
            device=runner.device,
            model_bytes=runner.model_bytes,
            kv_bytes=runner.kv_bytes,
            load_s=time.monotonic() - started_at,
            parts_s={
                "imports": imports_s,
                "weights": read_at - started_at,
                "context": made_at - read_at,
                "warm-up": warm_at - made_at,
            },
            notes=runner.notes,
        )
    )
    return Engine(scheduler, runner, MonotonicClock())


def loader(config: EngineConfig) -> Load:
    """Of the backend that the model is for: imported only in this process, only now (llama.cpp 0.4 s, torch 3 s).

    Raises `ModelLoadError` for a model that no backend loads.
    """
    path = Path(config.model_path)
    if backend_of(path, config.backend) == "torch":
        torch_backend.set_environment()
        from homeai.backends.torch.load import load as load_folder

        return lambda config, on_progress: load_folder(path, config, on_progress)
    from homeai.backends.llamacpp.runner import load as load_file

    return load_file


def scheduler_config(config: EngineConfig, limits: RunnerLimits, *, device: str) -> SchedulerConfig:
    """What was asked for, as far as the runner can do it."""
    kept = config.prefix_cache_tokens
    if kept is None and device == "cpu":
        kept = limits.num_kv_cells // CPU_KEPT_PART
    return SchedulerConfig(
        mode=config.mode,
        window_s=config.window_s,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_chunk_tokens=config.max_chunk_tokens,
        chunked_prefill=config.chunked_prefill,
        adaptive_budget=config.adaptive_budget,
        max_model_len=limits.max_model_len,
        max_drafts=min(config.max_drafts, limits.max_drafts),
        end_token_ids=limits.end_token_ids,
        cache=CacheConfig(
            num_cells=limits.num_kv_cells,
            num_seqs=limits.num_seqs,
            is_partitioned=limits.is_partitioned,
            can_share=limits.can_share,
            can_save=limits.can_save,
            kv_bytes_per_token=limits.kv_bytes_per_token,
            max_kept_cells=kept,
            host_bytes=config.host_cache_bytes,
        ),
        classes=config.classes,
        sources=config.sources,
        prompt_token_weight=config.prompt_token_weight,
        output_token_weight=config.output_token_weight,
    )


if __name__ == "__main__":
    main()
