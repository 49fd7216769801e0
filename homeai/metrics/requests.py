"""How requests were served, by fairness class: told when they end, and for every token of a stream."""

from __future__ import annotations

from typing import Final

from prometheus_client import Histogram

from homeai.ledger import LedgerRow
from homeai.metrics.series import Series
from homeai.request import FinishReason

# Seconds. A token is due within tens of milliseconds; a queue or a long answer takes minutes.
TOKEN_BUCKETS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
WAIT_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
REQUEST_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
PREEMPTION_BUCKETS: Final = (0, 1, 2, 3, 5, 10, 20)
PROMPT_BUCKETS: Final = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
OUTPUT_BUCKETS: Final = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)


class RequestMetrics:
    def __init__(self, series: Series) -> None:
        timed, counted = series.histogram_of_class, series.counter_of_class
        self._queue_time = timed("request_queue_time_seconds", "Arrival to batch", WAIT_BUCKETS)
        self._ttft = timed("time_to_first_token_seconds", "Arrival to first token", WAIT_BUCKETS)
        self._prefill_time = timed("request_prefill_time_seconds", "Batch to first token", WAIT_BUCKETS)
        self._decode_time = timed("request_decode_time_seconds", "First token to end", REQUEST_BUCKETS)
        self._inference_time = timed("request_inference_time_seconds", "Batch to end", REQUEST_BUCKETS)
        self._e2e = timed("e2e_request_latency_seconds", "Arrival to end", REQUEST_BUCKETS)
        self._tpot = timed(
            "request_time_per_output_token_seconds", "Mean of a request after its first token", TOKEN_BUCKETS
        )
        self._itl = timed("inter_token_latency_seconds", "Between two tokens of a stream", TOKEN_BUCKETS)
        self._parked = timed("request_parked_seconds", "How long a parked request was parked", WAIT_BUCKETS)
        self._preemptions = timed("request_preemptions", "How often a request was parked", PREEMPTION_BUCKETS)
        self._prompt = timed("request_prompt_tokens", "Length of a prompt", PROMPT_BUCKETS)
        self._output = timed("request_generation_tokens", "Length of an output", OUTPUT_BUCKETS)
        self._ended = counted("request_success", "Accepted requests that ended", "finished_reason", FinishReason)
        self._rejected = counted("requests_rejected", "Requests refused before they queued", "reason")
        self._prompt_tokens = counted("prompt_tokens", "Prompt tokens of ended requests")
        self._output_tokens = counted("generation_tokens", "Output tokens of ended requests")
        self._prefix_queries = counted("prefix_cache_queries", "Prompt tokens that were looked for in the cache")
        self._prefix_hits = counted("prefix_cache_hits", "Prompt tokens that were in the cache already")
        self._recomputed = counted("recomputed_tokens", "Tokens computed again after parking")
        self._moved = counted("parked_kv_bytes", "KV of parked requests moved to host memory and back")
        self._itl_of: dict[str, Histogram] = {}  # looking a label up costs more than observing

    def token_gap(self, fairness_class: str, seconds: float) -> None:
        """Called for every token: a dictionary look-up and an observation."""
        try:
            child = self._itl_of[fairness_class]
        except KeyError:
            child = self._itl_of[fairness_class] = self._itl.labels(fairness_class)
        child.observe(seconds)

    def rejected(self, fairness_class: str, reason: str) -> None:
        self._rejected.labels(fairness_class, reason).inc()

    def finished(self, row: LedgerRow) -> None:
        fairness_class = row.fairness_class
        self._ended.labels(fairness_class, row.finish_reason).inc()
        self._prompt_tokens.labels(fairness_class).inc(row.num_prompt_tokens)
        self._output_tokens.labels(fairness_class).inc(row.num_output_tokens)
        self._times(row)
        if row.queue_s is not None:
            self._ran(row)

    def _times(self, row: LedgerRow) -> None:
        """As far as it came."""
        times = (
            (self._queue_time, row.queue_s),
            (self._ttft, row.ttft_s),
            (self._prefill_time, _between(row.queue_s, row.ttft_s)),
            (self._decode_time, _between(row.ttft_s, row.e2e_s)),
            (self._inference_time, _between(row.queue_s, row.e2e_s)),
            (self._e2e, row.e2e_s),
            (self._tpot, _time_per_output_token(row)),
        )
        for histogram, seconds in times:
            if seconds is not None:
                histogram.labels(row.fairness_class).observe(seconds)

    def _ran(self, row: LedgerRow) -> None:
        """It was in the batch."""
        fairness_class = row.fairness_class
        self._prompt.labels(fairness_class).observe(row.num_prompt_tokens)
        self._output.labels(fairness_class).observe(row.num_output_tokens)
        self._prefix_queries.labels(fairness_class).inc(row.num_prompt_tokens)
        self._prefix_hits.labels(fairness_class).inc(row.num_cached_tokens)
        self._preemptions.labels(fairness_class).observe(row.num_preemptions)
        self._recomputed.labels(fairness_class).inc(row.num_recomputed_tokens)
        self._moved.labels(fairness_class).inc(row.num_moved_bytes)
        if row.num_preemptions:
            self._parked.labels(fairness_class).observe(row.parked_s)


def _between(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else until - since


def _time_per_output_token(row: LedgerRow) -> float | None:
    """Seconds per token after the first; None without a second one."""
    decode_s = _between(row.ttft_s, row.e2e_s)
    return None if decode_s is None or row.num_output_tokens < 2 else decode_s / (row.num_output_tokens - 1)
