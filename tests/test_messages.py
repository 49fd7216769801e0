"""What crosses the process boundary comes out as it went in."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.messages import (
    HEADER,
    AbortRequests,
    AddRequest,
    Down,
    EngineConfig,
    EngineFailed,
    EngineReady,
    Finished,
    Heartbeat,
    LoadModel,
    LoadProgress,
    Output,
    Ping,
    Progress,
    RequestFailed,
    Shutdown,
    StepOutputs,
    StepStats,
    Up,
    down_decoder,
    encode_frame,
    up_decoder,
)
from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import FinishReason, SampledToken, SamplingParams, TokenLogprob, WaitReason

CONFIG = EngineConfig(
    model_path="model.gguf",
    device="auto",
    n_gpu_layers=-1,
    num_threads=2,
    num_kv_cells=16384,
    max_model_len=0,
    max_num_seqs=8,
    max_num_batched_tokens=512,
    max_chunk_tokens=256,
    chunked_prefill=True,
    flash_attention="auto",
    swa_full=True,
    kv_type="f16",
    kv_layout="unified",
    num_cached_seqs=24,
    prefix_cache_tokens=None,
    host_cache_bytes=2**29,
    max_drafts=8,
    mode="auto",
    window_s=0.5,
    adaptive_budget=True,
    prompt_token_weight=1.0,
    output_token_weight=2.0,
    classes={"voice": ClassPolicy(weight=8.0, ttft_target_s=0.5)},
    sources={"küche": SourcePolicy(max_running=2, private=True)},
    heartbeat_interval_s=5.0,
)
ADD = AddRequest(
    request_id="r1",
    prompt_token_ids=[2, 262_143, 0],
    sampling=SamplingParams(seed=2**64 - 1, logit_bias={5: -100.0}, logprobs=0, max_tokens=1_000_000),
    source="küche",
    fairness_class="voice",
    arrival_at=12345.678901234,
)
STATS = StepStats(
    step=9,
    mode="continuous",
    num_running=2,
    num_waiting=1,
    num_decode_tokens=2,
    num_prefill_tokens=128,
    kv_used=500,
    step_s=0.05,
    host_s=0.001,
    num_preemptions=1,
    out_of_room=False,
)
STEP = StepOutputs(
    outputs=[
        Output("r1", 0, SampledToken(7)),
        Output("r2", 41, SampledToken(8, -0.5, (TokenLogprob(8, -0.5), TokenLogprob(9, -1.5)))),
    ],
    admitted=["r1"],
    finished=[
        Finished("r2", FinishReason.LENGTH, 1.0, 1.5, 42, 1, 0.25),
        Finished("r3", FinishReason.TIMEOUT, None, None, 0, 0, 0.0),
    ],
    stats=STATS,
    progress=[Progress("r4", "waiting", 100, 0, 0, WaitReason.KV_SPACE), Progress("r1", "running", 3, 3, 1, None)],
)
DOWN: list[Down] = [LoadModel(CONFIG), ADD, AbortRequests(["r1", "r2"], FinishReason.STOP), Ping(), Shutdown()]
UP: list[Up] = [
    LoadProgress("weights", 0.5),
    EngineReady(num_kv_cells=1, max_model_len=2, device="cpu", model_bytes=3, kv_bytes=4, load_s=0.5),
    STEP,
    Heartbeat(7),
    RequestFailed("r1", "too long"),
    EngineFailed("broken", fatal=True),
]


def body_of(frame: bytes) -> bytes:
    (length,) = HEADER.unpack(frame[: HEADER.size])
    assert length == len(frame) - HEADER.size
    return frame[HEADER.size :]


@pytest.mark.parametrize("message", DOWN, ids=lambda m: type(m).__name__)
def test_message_to_the_engine_survives(message: Down) -> None:
    assert down_decoder.decode(body_of(encode_frame(message))) == message


@pytest.mark.parametrize("message", UP, ids=lambda m: type(m).__name__)
def test_message_from_the_engine_survives(message: Up) -> None:
    assert up_decoder.decode(body_of(encode_frame(message))) == message


def test_every_kind_of_message_is_tried_here() -> None:
    assert {type(m) for m in DOWN} == set(typing.get_args(Down))
    assert {type(m) for m in UP} == set(typing.get_args(Up))


def test_messages_of_the_other_direction_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        down_decoder.decode(body_of(encode_frame(Heartbeat(1))))
    with pytest.raises(msgspec.ValidationError):
        up_decoder.decode(body_of(encode_frame(Ping())))


@given(
    prompt_token_ids=st.lists(st.integers(0, 2**31 - 1)),
    temperature=st.floats(0, allow_infinity=False),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)),
    source=st.text(st.characters(codec="utf-8")),
)
@settings(derandomize=True, deadline=None)
def test_any_request_survives(
    prompt_token_ids: list[int], temperature: float, seed: int, logit_bias: dict[int, float], source: str
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=seed, logit_bias=logit_bias)
    message = msgspec.structs.replace(ADD, prompt_token_ids=prompt_token_ids, sampling=sampling, source=source)
    assert down_decoder.decode(body_of(encode_frame(message))) == message


def test_token_without_logprobs_is_small() -> None:
    """A step's message is sent at every step: one token of one request costs its id, its index, its number."""
    one, two = (
        msgspec.structs.replace(STEP, outputs=[Output("r1", 40, SampledToken(70_000))] * n, progress=None)
        for n in (1, 2)
    )
    assert len(encode_frame(two)) - len(encode_frame(one)) <= 16
