"""What the engine does, step by step."""

from __future__ import annotations

from typing import Final

from homeai.messages import StepStats
from homeai.metrics.series import Series
from homeai.request import Mode

STEP_BUCKETS: Final = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 1, 2.5, 5)  # seconds
HOST_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.1)  # seconds
RATIO_BUCKETS: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.35, 1.5, 2, 4)
TOKEN_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class StepMetrics:
    def __init__(self, series: Series) -> None:
        counted, timed = series.counter, series.histogram
        self._steps = series.counter_by("engine_steps", "Steps of the engine", "mode", Mode)
        self._computed = series.counter_by("computed_tokens", "Tokens computed", "phase", ("prefill", "decode"))
        self._preemptions = counted("num_preemptions", "Requests taken out of the batch to come back later")
        self._evictions = counted("prefix_cache_evictions", "Cached prefixes that made room for others")
        self._out_of_room = counted("out_of_room", "Steps for which the KV cache had no room")
        self._idle_rows = counted("idle_row_steps", "Requests that a step had room for while others waited")
        self._drafts = counted("spec_decode_num_drafts", "Steps that guessed ahead")
        self._draft_tokens = counted("spec_decode_num_draft_tokens", "Tokens guessed ahead")
        self._accepted_tokens = counted("spec_decode_num_accepted_tokens", "Guesses that were right")
        self._tokens = timed("iteration_tokens", "Tokens computed in one step", TOKEN_BUCKETS)
        self._time = timed("engine_step_seconds", "One step", STEP_BUCKETS)
        self._host_time = timed("engine_host_seconds", "What of one step is not the forward pass", HOST_BUCKETS)
        self._ratio = timed(
            "engine_step_actual_to_predicted_ratio", "What a step took, by what it was to take", RATIO_BUCKETS
        )

    def stepped(self, stats: StepStats) -> None:
        self._evictions.inc(stats.num_evictions)
        self._idle_rows.inc(stats.num_idle_rows)
        self._preemptions.inc(stats.num_preemptions)
        self._out_of_room.inc(stats.out_of_room)
        if not (num_tokens := stats.num_decode_tokens + stats.num_prefill_tokens):
            return  # nothing was computed: only news
        self._steps.labels(stats.mode).inc()
        self._computed.labels("prefill").inc(stats.num_prefill_tokens)
        self._computed.labels("decode").inc(stats.num_decode_tokens)
        self._tokens.observe(num_tokens)
        self._time.observe(stats.step_s)
        self._host_time.observe(stats.host_s)
        if stats.predicted_s > 0:
            self._ratio.observe(stats.step_s / stats.predicted_s)
        if stats.num_draft_tokens:
            self._drafts.inc()
            self._draft_tokens.inc(stats.num_draft_tokens)
            self._accepted_tokens.inc(stats.num_accepted_tokens)
