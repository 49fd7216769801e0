"""What crosses the process boundary, and nothing else: msgpack of tagged structs.

Down (front end → engine): LoadModel, AddRequest, AbortRequests, Ping, Shutdown.
Up (engine → front end): LoadProgress, EngineReady, StepOutputs, Heartbeat, RequestFailed, EngineFailed.

Token ids and numbers only; text, templates and stop strings stay in front. Frames are a 4-byte
little-endian length and a msgpack body.
"""

from __future__ import annotations

import struct

import msgspec

from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import FinishReason, SampledToken, SamplingParams, WaitReason

# ---- down ---------------------------------------------------------------------------------------


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the child needs to load and schedule; resolved by the front end."""

    model_path: str
    backend: str = "auto"  # auto (by what the path holds) | llamacpp | torch
    device: str  # auto | cuda | cpu; the child looks, so that the front end never opens a GPU
    n_gpu_layers: int
    num_threads: int
    num_kv_cells: int
    max_model_len: int  # 0: what the model was trained for, as far as the cells go
    max_num_seqs: int
    max_num_batched_tokens: int
    max_chunk_tokens: int
    chunked_prefill: bool
    flash_attention: str  # auto | on | off
    swa_full: bool
    kv_type: str
    kv_layout: str  # unified | partitioned
    num_cached_seqs: int
    prefix_cache_tokens: int | None  # None: as the device likes it
    host_cache_bytes: int
    max_drafts: int
    mode: str  # auto | continuous | single | static | window
    window_s: float
    adaptive_budget: bool
    prompt_token_weight: float
    output_token_weight: float
    classes: dict[str, ClassPolicy]
    sources: dict[str, SourcePolicy]
    heartbeat_interval_s: float
    fit: str = "auto"  # auto | strict
    memory_margin: float = 0.05  # part of each memory that stays free
    gpu_memory_utilization: float = 0.9  # part of the GPU that torch may take, weights and KV together

    @property
    def num_cells_per_request(self) -> int:
        return self.num_kv_cells // (self.max_num_seqs if self.kv_layout == "partitioned" else 1)


class LoadModel(msgspec.Struct, frozen=True, tag=True):
    config: EngineConfig


class AddRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    source: str
    fairness_class: str
    arrival_at: float  # CLOCK_MONOTONIC, the same in both processes
    is_pin: bool = False  # what it computes stays in the cache for good
    cache_prompt: bool = True  # false: compute all of the prompt, whatever is known of it
    output_token_ids: list[int] = []  # drawn by an engine that is gone: it goes on behind them


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    request_ids: list[str]
    reason: FinishReason = FinishReason.ABORT


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Answered by the loop itself with a Heartbeat: a blocked loop cannot answer."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop now; what is still live ends as aborted."""


# ---- up -----------------------------------------------------------------------------------------


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    stage: str
    fraction: float


class EngineReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    num_kv_cells: int
    max_model_len: int
    device: str  # cuda | cpu
    model_bytes: int
    kv_bytes: int
    load_s: float
    parts_s: dict[str, float] = {}  # of this process's start, in their order
    notes: list[str] = []  # what was loaded otherwise than asked for, and why


class Output(msgspec.Struct, frozen=True, array_like=True):
    """A token of a request; `output_index` is absolute, so that a duplicate or a gap is seen."""

    request_id: str
    output_index: int
    token: SampledToken


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request's end, after its last token: said exactly once, with the counts for ledger and metrics."""

    request_id: str
    finish_reason: FinishReason
    admitted_at: float | None
    first_token_at: float | None
    num_output_tokens: int
    num_preemptions: int
    parked_s: float
    num_cached_tokens: int = 0  # of the prompt, when it was first admitted
    num_recomputed_tokens: int = 0  # after parking
    num_moved_bytes: int = 0  # to host memory and back, while parked
    is_pinned: bool = False  # what it computed stays, as its AddRequest wanted
    prefill_parked_s: float = 0.0  # of `parked_s`, before its first token


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """The step as it ran, and what there is after it."""

    step: int
    mode: str
    num_running: int
    num_waiting: int
    kv_used: int
    num_cached_tokens: int = 0  # cells kept for reuse
    host_bytes: int = 0  # of saved sequences
    num_pinned_seqs: int = 0
    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # of the drafts
    num_idle_rows: int = 0  # requests that the batch had room for while others waited
    num_preemptions: int = 0
    num_evictions: int = 0
    out_of_room: bool = False
    step_s: float = 0.0
    predicted_s: float = 0.0
    host_s: float = 0.0  # schedule + sample + bookkeeping, everything that is not the forward pass


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """One live request for the status page."""

    request_id: str
    status: str  # waiting | running | preempted
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    wait_reason: WaitReason | None
    num_step_tokens: int = 0  # of it, in the last step
    num_kv_cells: int = 0  # that it takes; of a cell that several run in, its part


class Served(msgspec.Struct, frozen=True, array_like=True):
    """What a source was served lately, in weighted tokens that fade."""

    fairness_class: str
    source: str
    num_tokens: float


class StepOutputs(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a step brought and had not said yet, for all requests."""

    outputs: list[Output]
    admitted: list[str]  # entered the batch for the first time in this step
    finished: list[Finished]
    stats: StepStats
    resumed: list[str] = []  # came back to it: the gap before their next token is parked time
    progress: list[Progress] | None = None  # a bounded snapshot, at most a few times a second
    served: list[Served] | None = None  # with it, the most served first


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent by the loop itself, while idle and in answer to a Ping: a thread's heartbeat would lie."""

    step: int
    predicted_s: float = 0.0  # length of a long step that begins now


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot serve this one request: an invariant that the front end should have kept, or (`is_invalid`)
    something in it that only the engine can find out."""

    request_id: str
    message: str
    is_invalid: bool = False


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """Last words. `fatal`: loading again would fail the same way. `unavailable`: nothing broke, the device is
    not there or has no room now."""

    message: str
    fatal: bool
    unavailable: bool = False


Down = LoadModel | AddRequest | AbortRequests | Ping | Shutdown
Up = LoadProgress | EngineReady | StepOutputs | Heartbeat | RequestFailed | EngineFailed

HEADER = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
down_decoder: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
up_decoder: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)


def encode_frame(message: Down | Up) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body
