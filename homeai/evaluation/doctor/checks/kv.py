"""Requests are parked because the KV cache has no room for all that run."""

from __future__ import annotations

from typing import Final

from homeai.evaluation.doctor.facts import Facts
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.words import gib, percent, seconds
from homeai.evaluation.summary import percentile

MIN_PARKED: Final = 3
MIN_WAITED_S: Final = 20.0  # request-seconds
MANY: Final = 0.05  # of all requests; a spoken question may park another one now and then
MUCH_WAITING: Final = 0.5  # request-seconds of waiting for cells, for each second with work
FULL: Final = 0.9  # of the cells, used at the peak
CELL_STEP: Final = 256
MIN_CELLS: Final = 4096
MEMORY_LEFT: Final = 0.1  # of the machine's, when the pool grows


def check(facts: Facts) -> Finding | None:
    window, config, status = facts.window, facts.config, facts.status
    if window is None or config is None or status is None or not facts.num_kv_cells:
        return None
    parked = [row for row in facts.served if row.num_preemptions > 0]
    share = window.max_kv_used / facts.num_kv_cells
    is_full = share >= FULL or window.num_out_of_room > 0
    are_many = len(parked) >= max(MIN_PARKED, MANY * len(facts.served))
    waited_s = window.reasons.get("kv_space", 0.0)
    if not is_full or not (are_many or waited_s >= max(MIN_WAITED_S, MUCH_WAITING * window.busy_s)):
        return None
    sizes = [row.num_prompt + row.num_output for row in facts.served]
    typical = max(1, int(percentile(sizes, 95) or 1))
    fitting = max(1, facts.num_kv_cells // typical)
    wanted = -(-min(config.scheduler.max_num_seqs, window.max_running + window.max_waiting) * typical // CELL_STEP)
    wanted *= CELL_STEP
    cell_bytes = status.memory.kv_bytes / facts.num_kv_cells
    more_bytes = int((wanted - facts.num_kv_cells) * cell_bytes)
    free = _free(facts)
    advice, settings = [], {}
    if more_bytes > 0 and more_bytes < free:
        advice.append(
            f"There is memory: {wanted:,} cells instead of {facts.num_kv_cells:,} take {gib(more_bytes)} more, "
            f"{gib(free)} are free."
        )
        settings["scheduler.kv_cells"] = str(wanted)
    elif config.model.kv_type == "f16":
        advice.append(
            f"KV as q8_0 takes half of {gib(status.memory.kv_bytes)}: twice as many cells "
            f"({2 * facts.num_kv_cells:,}) in the same memory, at some cost in quality."
        )
        settings |= {"model.kv_type": "q8_0", "scheduler.kv_cells": str(2 * facts.num_kv_cells)}
    if fitting < config.scheduler.max_num_seqs:
        advice.append(
            f"Or fewer at once: of such requests ({typical:,} tokens at p95) {fitting} fit, scheduler.max_num_seqs "
            f"is {config.scheduler.max_num_seqs}; who does not fit then waits and is not parked."
        )
        if not settings:
            settings["scheduler.max_num_seqs"] = str(fitting)
    advice.append("Or a shorter context for each (scheduler.max_model_len), or a smaller model (`homeai plan`).")
    return Finding(
        check="kv-pressure",
        title="The KV cache is too small for all who run: requests are parked, or wait for cells",
        evidence=[
            f"{len(parked)} of {len(facts.served)} requests were parked ({percent(len(parked) / len(facts.served))}; "
            f"up to {percent(MANY)} is usual), for {seconds(sum(row.parked_s for row in parked))} in all, and "
            f"{sum(row.num_recomputed for row in parked):,} tokens were computed again",
            f"KV in use at the peak: {window.max_kv_used:,} of {facts.num_kv_cells:,} cells ({percent(share)}; from "
            f"{percent(FULL)} on it is full); steps without room: {window.num_out_of_room}; request-seconds of "
            f"waiting for cells: {waited_s:,.0f} in {window.busy_s:,.0f} s with work",
        ],
        cause=f"Up to {window.max_running} requests of {typical:,} tokens (p95) run at once, and "
        f"{facts.num_kv_cells:,} cells hold {fitting} of them.",
        advice=advice,
        settings=settings,
    )


def _free(facts: Facts) -> int:
    """Bytes that the pool may still take."""
    assert facts.status is not None, "checked before"
    memory = facts.status.memory
    if facts.on_gpu and memory.gpu is not None:
        return max(0, memory.gpu.total_bytes - memory.gpu.used_bytes - int(MEMORY_LEFT * memory.gpu.total_bytes))
    return max(0, memory.available_bytes - int(MEMORY_LEFT * memory.total_bytes))
