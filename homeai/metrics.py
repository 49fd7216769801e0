"""What /metrics shows: Prometheus series in vLLM's words, prefixed `homeai_`.

Series that tell how somebody was served are labelled by fairness class. One instance per daemon, with a
registry of its own; the event loop is the only writer.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE

from homeai.ledger import LedgerRow
from homeai.messages import EngineReady, StepStats

__all__ = ["CONTENT_TYPE", "Metrics"]

# Bounds in seconds. A token is due within tens of milliseconds; a queue or a long answer takes minutes.
TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
WAIT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
REQUEST_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
STEP_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 1, 2.5, 5)
HOST_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.1)
RATIO_BUCKETS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.35, 1.5, 2, 4)
PREEMPTION_BUCKETS = (0, 1, 2, 3, 5, 10, 20)

Buckets = tuple[float, ...]


class _Registry:
    """Makes series of one registry under one prefix."""

    def __init__(self) -> None:
        self.collectors = CollectorRegistry()

    def histogram(self, name: str, text: str, buckets: Buckets, *labels: str) -> Histogram:
        return Histogram(f"homeai_{name}", text, labels, buckets=buckets, registry=self.collectors)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"homeai_{name}", text, labels, registry=self.collectors)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"homeai_{name}", text, registry=self.collectors)


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = _Registry()
        histogram, counter, gauge = registry.histogram, registry.counter, registry.gauge

        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token", WAIT_BUCKETS, "class")
        self._itl = histogram("inter_token_latency_seconds", "Between two tokens of a stream", TOKEN_BUCKETS, "class")
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean of a request after its first token", TOKEN_BUCKETS, "class"
        )
        self._queue_time = histogram("request_queue_time_seconds", "Arrival to batch", WAIT_BUCKETS, "class")
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to last token", REQUEST_BUCKETS, "class")
        self._preemptions_of = histogram(
            "request_preemptions", "How often a request was parked", PREEMPTION_BUCKETS, "class"
        )
        self._parked = histogram(
            "request_parked_seconds", "Time that a parked request was parked", WAIT_BUCKETS, "class"
        )
        self._recomputed = counter("recomputed_tokens", "Tokens computed again after parking", "class")
        self._moved = counter("parked_kv_bytes", "KV of parked requests moved to host memory and back", "class")
        self._requests = counter("requests", "Requests that ended", "class", "outcome")
        self._rejected = counter("requests_rejected", "Requests refused before they queued", "class", "reason")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests", "class")
        self._output_tokens = counter("generation_tokens", "Output tokens of ended requests", "class")
        self._prefix_hits = counter("prefix_cache_hits", "Prompt tokens that were in the cache already", "class")
        self._evictions = counter("prefix_cache_evictions", "Cached prefixes that made room for others")

        self._running = gauge("num_requests_running", "Requests in the batch")
        self._waiting = gauge("num_requests_waiting", "Requests that wait for the batch")
        self._kv_used = gauge("kv_cache_used_tokens", "KV cells in use")
        self._kv_cached = gauge("kv_cache_kept_tokens", "KV cells that nobody runs in, kept for reuse")
        self._host_bytes = gauge("host_cache_bytes", "Host memory that holds saved KV")
        self._kv_total = gauge("kv_cache_size_tokens", "KV cells there are")
        self._resident = gauge("model_resident", "1 while the model is loaded and serves")
        self._steps = counter("engine_steps", "Steps of the engine", "mode")
        self._preemptions = counter("num_preemptions", "Requests taken out of the batch to come back later")
        self._out_of_room = counter("out_of_room", "Steps for which the KV cache had no room")
        self._idle_rows = counter("idle_row_steps", "Requests that a step had room for while others waited")
        self._drafts = counter("spec_decode_num_draft_tokens", "Tokens guessed ahead")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Guesses that were right")
        self._step_ratio = histogram(
            "engine_step_actual_to_predicted", "How long a step took, by how long it was thought to take", RATIO_BUCKETS
        )
        self._step_time = histogram("engine_step_seconds", "One step", STEP_BUCKETS)
        self._host_time = histogram("engine_host_seconds", "What of one step is not the forward pass", HOST_BUCKETS)

        self._itl_of: dict[str, Histogram] = {}  # looking a label up costs more than observing

    def observe_engine(self, ready: EngineReady | None) -> None:
        """The engine is ready, or (None) gone, and everything in it."""
        self._resident.set(ready is not None)
        self._kv_total.set(ready.num_kv_cells if ready else 0)
        for gauge in (self._running, self._waiting, self._kv_used, self._kv_cached, self._host_bytes):
            gauge.set(0)

    def observe_step(self, stats: StepStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_used.set(stats.kv_used)
        self._kv_cached.set(stats.num_cached_tokens)
        self._host_bytes.set(stats.host_bytes)
        self._evictions.inc(stats.num_evictions)
        self._idle_rows.inc(stats.num_idle_rows)
        self._preemptions.inc(stats.num_preemptions)
        self._out_of_room.inc(stats.out_of_room)
        if stats.num_decode_tokens + stats.num_prefill_tokens:  # else nothing was computed: only news
            self._steps.labels(stats.mode).inc()
            self._step_time.observe(stats.step_s)
            self._host_time.observe(stats.host_s)
            if stats.predicted_s > 0:
                self._step_ratio.observe(stats.step_s / stats.predicted_s)
            if stats.num_draft_tokens:
                self._drafts.inc(stats.num_draft_tokens)
                self._accepted.inc(stats.num_accepted_tokens)

    def observe_token_gap(self, fairness_class: str, seconds: float) -> None:
        """Called for every token: a dictionary look-up and an observation."""
        try:
            child = self._itl_of[fairness_class]
        except KeyError:
            child = self._itl_of[fairness_class] = self._itl.labels(fairness_class)
        child.observe(seconds)

    def observe_finished(self, row: LedgerRow) -> None:
        """A request that was accepted has ended, however it did."""
        fairness_class = row.fairness_class
        self._requests.labels(fairness_class, row.finish_reason).inc()
        self._prompt_tokens.labels(fairness_class).inc(row.num_prompt_tokens)
        self._prefix_hits.labels(fairness_class).inc(row.num_cached_tokens)
        self._output_tokens.labels(fairness_class).inc(row.num_output_tokens)
        self._preemptions_of.labels(fairness_class).observe(row.num_preemptions)
        self._recomputed.labels(fairness_class).inc(row.num_recomputed_tokens)
        self._moved.labels(fairness_class).inc(row.num_moved_bytes)
        if row.num_preemptions:
            self._parked.labels(fairness_class).observe(row.parked_s)
        durations = ((self._queue_time, row.queue_s), (self._ttft, row.ttft_s), (self._e2e, row.e2e_s))
        for histogram, seconds in (*durations, (self._tpot, _time_per_output_token(row))):
            if seconds is not None:
                histogram.labels(fairness_class).observe(seconds)

    def observe_rejected(self, fairness_class: str, reason: str) -> None:
        self._rejected.labels(fairness_class, reason).inc()

    def render(self) -> bytes:
        """The body of /metrics, to be sent as `CONTENT_TYPE`."""
        return generate_latest(self._registry.collectors)


def _time_per_output_token(row: LedgerRow) -> float | None:
    """Seconds per token after the first; None without a second one."""
    if row.ttft_s is None or row.e2e_s is None or row.num_output_tokens < 2:
        return None
    return (row.e2e_s - row.ttft_s) / (row.num_output_tokens - 1)
