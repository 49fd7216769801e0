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
import gc
import logging
import os
import signal
import socket
import time

import homeai.logs
from homeai.clock import MonotonicClock
from homeai.engine.engine import Engine
from homeai.engine.loop import EngineLoop
from homeai.engine.wire import Inbox, Outbox
from homeai.errors import ModelLoadError
from homeai.messages import EngineConfig, EngineFailed, EngineReady, LoadModel, LoadProgress
from homeai.scheduling.scheduler import Scheduler, SchedulerConfig

log = logging.getLogger("homeai.engine")

LOAD_STAGE = "weights"


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
    EngineLoop(engine, inbox, outbox, heartbeat_interval_s=message.config.heartbeat_interval_s).run()
    engine.runner.close()


def load(config: EngineConfig, outbox: Outbox) -> Engine:
    """Make the engine that `config` describes, reporting progress, and say that it is ready."""
    from homeai.backends.llamacpp import runner as llamacpp  # 0.4 s: only in this process, only now

    started_at = time.monotonic()
    last = -1

    def on_progress(fraction: float) -> None:
        nonlocal last
        if int(fraction * 50) > last:
            last = int(fraction * 50)
            outbox.put(LoadProgress(LOAD_STAGE, fraction))

    runner = llamacpp.load(config, on_progress)
    outbox.put(LoadProgress("warm-up", 1.0))
    runner.warm_up()
    limits = runner.limits
    scheduler = Scheduler(
        SchedulerConfig(
            mode=config.mode,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_chunk_tokens=config.max_chunk_tokens,
            chunked_prefill=config.chunked_prefill,
            num_kv_cells=limits.num_kv_cells,
            max_model_len=limits.max_model_len,
            end_token_ids=limits.end_token_ids,
            class_weights=config.class_weights,
            queue_timeouts_s=config.queue_timeouts_s,
            prompt_token_weight=config.prompt_token_weight,
            output_token_weight=config.output_token_weight,
        )
    )
    outbox.put(
        EngineReady(
            num_kv_cells=limits.num_kv_cells,
            max_model_len=limits.max_model_len,
            device=runner.device,
            model_bytes=runner.model_bytes,
            kv_bytes=runner.kv_bytes,
            load_s=time.monotonic() - started_at,
        )
    )
    return Engine(scheduler, runner, MonotonicClock())


if __name__ == "__main__":
    main()
